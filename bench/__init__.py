"""The benchmark harness: paired arms with a control, FP64 accuracy gate, raw samples, cells."""
