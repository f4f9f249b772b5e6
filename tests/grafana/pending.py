"""MERGE: metrics that dashboards and rules name already and another piece of work brings.

A test fails when one of them is there: take it out then. When none is left, delete this file and
what imports it.
"""

PENDING = frozenset(
    """
    headrace_build_info headrace_run_info
    headrace_broker_oldest_fragment_age_seconds headrace_broker_fragment_age_seconds
    headrace_broker_message_bytes headrace_broker_troubles_total headrace_broker_max_lag_versions
    headrace_broker_batch_fragments headrace_broker_weights_published_total
    headrace_broker_weights_published_timestamp_seconds headrace_broker_weights_bytes
    headrace_broker_weights_ready_seconds headrace_broker_weights_behind_versions
    headrace_broker_clock_skew_seconds headrace_broker_late_peers
    headrace_samplers_env_steps_total headrace_samplers_episodes_total
    headrace_samplers_generated_fragments_total headrace_samplers_fragments_total
    headrace_samplers_fragment_bytes_total headrace_samplers_wait_seconds_total
    headrace_samplers_env_seconds_total headrace_samplers_inference_seconds_total
    headrace_samplers_inference_calls_total headrace_samplers_inference_rows_total
    headrace_samplers_env_failures_total headrace_samplers_reconnects_total
    headrace_samplers_unacked_fragments headrace_samplers_ledger_unaccounted
    headrace_samplers_ack_seconds headrace_samplers_env_step_seconds
    headrace_actor_reconnects_total headrace_actor_weights_timestamp_seconds
    headrace_actor_last_ack_timestamp_seconds headrace_actor_ack_seconds
    headrace_actor_env_step_seconds
    headrace_learner_checkpoint_interval_seconds headrace_learner_gpu_memory_bytes
    headrace_learner_rank headrace_learner_world headrace_learner_reconnects_total
    headrace_node_samplers headrace_node_samplers_wanted headrace_node_restarts_total
    headrace_node_weights_version headrace_node_weights_bytes_total
    headrace_node_weights_fetches_total headrace_node_samplers_memory_bytes
    headrace_node_samplers_env_steps_total headrace_node_samplers_episodes_total
    headrace_node_samplers_wait_seconds_total headrace_node_samplers_unacked_fragments
    """.split()
)
# With the names under which an expression asks for a histogram.
PENDING_SERIES = PENDING | {
    f"{name}_{end}" for name in PENDING for end in ("bucket", "sum", "count")
}
