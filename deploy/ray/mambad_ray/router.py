"""Ray Serve's choice of a replica: what `affinity` says of the request's key."""

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from mambad_ray.affinity import choices


class AffinityRouter(RequestRouter):
    """Routes by the first argument of the call: a key, or None."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return ranks of replicas; a rank is tried when all before it are full."""
        key = pending_request.args[0] if pending_request is not None and pending_request.args else None
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        return [[by_name[name] for name in names] for names in choices(key, by_name)]
