"""Program -> GPU: driver calls, workspaces, bound launches, entry caches. Importing it touches no CUDA."""
