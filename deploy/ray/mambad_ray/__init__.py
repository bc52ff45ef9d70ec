"""mambad as a Ray Serve application: `mambad_ray.application:build`.

Not part of the package `mambad`: put the folder `deploy/ray` on the workers' PYTHONPATH, or name it as
`working_dir` of the application's runtime environment. `affinity` and `scaling` need no Ray.
"""
