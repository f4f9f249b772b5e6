"""Coming from RLlib and from Stable-Baselines3: nothing of theirs is left out."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "coming-from"
PAGES = ("rllib.md", "sb3.md")

# Every key of Ray 2.60 that is about samplers, learners, IMPALA, APPO, PPO, evaluation, faults,
# checkpoints, the model and reporting.
RLLIB = """
num_env_runners create_local_env_runner create_env_on_local_worker num_envs_per_env_runner
gym_env_vectorize_mode num_cpus_per_env_runner num_gpus_per_env_runner
custom_resources_per_env_runner validate_env_runners_after_construction sample_timeout_s
max_requests_in_flight_per_env_runner env_to_module_connector module_to_env_connector
add_default_connectors_to_env_to_module_pipeline add_default_connectors_to_module_to_env_pipeline
episode_lookback_horizon merge_env_runner_states broadcast_env_runner_states
use_env_runner_state_server env_runner_state_server_max_concurrency rollout_fragment_length
batch_mode explore episodes_to_numpy compress_observations observation_filter remote_worker_envs
remote_env_batch_wait_ms clip_rewards normalize_actions clip_actions disable_env_checking
action_mask_key env_task_fn exploration_config
flatten_observations frame_stacking mean_std_filter observation_preprocessor
prev_actions_prev_rewards normalize_and_clip_actions
num_learners num_cpus_per_learner num_gpus_per_learner custom_resources_per_learner
num_aggregator_actors_per_learner max_requests_in_flight_per_aggregator_actor
max_requests_in_flight_per_learner local_gpu_idx learner_config_dict placement_strategy
torch_ddp_kwargs gamma lr grad_clip grad_clip_by num_epochs minibatch_size shuffle_batch_per_epoch
train_batch_size_per_learner train_batch_size torch_compile_learner torch_compile_worker
_torch_grad_scaler_class _torch_lr_scheduler_classes torch_skip_nan_gradients
vtrace vtrace_clip_rho_threshold vtrace_clip_pg_rho_threshold learner_queue_size
num_gpu_loader_threads broadcast_interval timeout_s_sampler_manager timeout_s_aggregator_manager
vf_loss_coeff entropy_coeff min_time_s_per_iteration opt_type decay momentum epsilon lr_schedule
entropy_coeff_schedule minibatch_buffer_size num_multi_gpu_tower_stacks replay_proportion
replay_buffer_num_slots learner_queue_timeout _separate_vf_optimizer _lr_vf _env_runners_only
_skip_learners
clip_param use_circular_buffer circular_buffer_num_batches circular_buffer_iterations_per_batch
simple_queue_size target_network_update_freq tau use_kl_loss kl_coeff kl_target
target_worker_clipping use_gae lambda_ vf_share_layers use_critic vf_clip_param
evaluation_interval evaluation_duration evaluation_duration_unit evaluation_sample_timeout_s
evaluation_parallel_to_training evaluation_force_reset_envs_before_iteration evaluation_config
evaluation_num_env_runners custom_evaluation_function unhealthy_workers_timeout_s
error_after_n_consecutive_skips
restart_failed_env_runners ignore_env_runner_failures max_num_env_runner_restarts
delay_between_env_runner_restarts_s restart_failed_sub_environments
num_consecutive_env_runner_failures_tolerance env_runner_health_probe_timeout_s
env_runner_restore_timeout_s
save_to_path restore_from_path from_checkpoint _use_msgpack_checkpoints
checkpoint_trainable_policies_only export_native_model_files
fcnet_hiddens conv_filters head_fcnet_hiddens free_log_std log_std_clip_param use_lstm max_seq_len
lstm_cell_size lstm_use_prev_action lstm_use_prev_reward use_attention RLModule RLModuleSpec Catalog
metrics_num_episodes_for_smoothing min_train_timesteps_per_iteration
min_sample_timesteps_per_iteration log_gradients log_level seed
"""
SB3 = """
policy env learning_rate n_steps batch_size n_epochs gamma gae_lambda clip_range clip_range_vf
normalize_advantage ent_coef vf_coef max_grad_norm use_sde sde_sample_freq rollout_buffer_class
rollout_buffer_kwargs target_kl stats_window_size tensorboard_log policy_kwargs verbose seed device
_init_setup_model rms_prop_eps use_rms_prop net_arch activation_fn ortho_init log_std_init
squash_output features_extractor_class features_extractor_kwargs share_features_extractor
optimizer_class optimizer_kwargs DummyVecEnv SubprocVecEnv VecNormalize VecFrameStack EvalCallback
CheckpointCallback total_timesteps reset_num_timesteps predict save load
"""


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest) -> str:
    return (FOLDER / str(request.param)).read_text()


@pytest.mark.parametrize(("name", "words"), [(PAGES[0], RLLIB), (PAGES[1], SB3)], ids=PAGES)
def test_every_name_of_theirs_is_told(name: str, words: str) -> None:
    """In code, inside the tables or the headings: `name`, `name(...)`, `name=1`."""
    found = set(re.findall(r"[A-Za-z_0-9]+", " ".join(re.findall(r"`([^`]+)`", _text(name)))))
    assert sorted(set(words.split()) - found) == []


def test_a_row_has_two_cells(page: str) -> None:
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert len(rows) > 40
    assert [row for row in rows if row.count("|") != 3 or not all(_cells(row))] == []


def _text(name: str) -> str:
    """Without the fenced blocks, whose code is theirs."""
    return re.sub(r"```.*?```", "", (FOLDER / name).read_text(), flags=re.DOTALL)


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_tests_that_are_named_are_there(page: str) -> None:
    tests = "".join(path.read_text() for path in (FOLDER.parents[1] / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", page))
    assert sorted(name for name in named if f"def {name}(" not in tests) == []
