"""Machines and processes: cores, memory, descriptors."""

from grafana.generate.panels import Board, Row, lines, stack

_NO_NODE = "No node with a metrics port"

_NO_ACT = "No node with actor.acting other than local"

_PROCESSES = (
    lines(
        "Cores",
        "none",
        "Used by each process that is scraped.",
        {"{{role}} {{instance}}": 'rate(process_cpu_seconds_total{job="$job"}[$__rate_interval])'},
    ),
    lines(
        "Memory",
        "bytes",
        "Resident, by process.",
        {"{{role}} {{instance}}": 'process_resident_memory_bytes{job="$job"}'},
    ),
    lines(
        "Descriptors",
        "percentunit",
        "Open files and sockets, of those that are allowed.",
        {"{{role}} {{instance}}": 'process_open_fds{job="$job"} / process_max_fds{job="$job"}'},
    ),
)

_NODES = (
    lines(
        "Samplers",
        "none",
        "That run, that a broker knows, and that should run.",
        {
            "{{instance}} running": 'headrace_node_samplers{job="$job"}',
            "{{instance}} welcome": 'headrace_node_samplers_welcome{job="$job"}',
            "{{instance}} wanted": 'headrace_node_samplers_wanted{job="$job"}',
        },
        none=_NO_NODE,
    ),
    lines(
        "Restarts",
        "none",
        "Of samplers, in each interval.",
        {"{{instance}}": 'increase(headrace_node_restarts_total{job="$job"}[$__rate_interval])'},
        none=_NO_NODE,
    ),
    lines(
        "Memory of samplers",
        "bytes",
        "All of a node's; shared pages counted once.",
        {"{{instance}}": 'headrace_node_samplers_memory_bytes{job="$job"}'},
        none=_NO_NODE,
    ),
    lines(
        "Agent steps a second",
        "short",
        "By node.",
        {
            "{{instance}}": "rate(headrace_node_samplers_env_steps_total"
            '{job="$job"}[$__rate_interval])'
        },
        none=_NO_NODE,
    ),
    lines(
        "Episodes a second",
        "short",
        "By node.",
        {
            "{{instance}}": "rate(headrace_node_samplers_episodes_total"
            '{job="$job"}[$__rate_interval])'
        },
        none=_NO_NODE,
    ),
    stack(
        "Waits",
        "none",
        "Samplers that wait at a moment, by node and by what for.",
        {
            "{{instance}} {{phase}}": "rate(headrace_node_samplers_wait_seconds_total"
            '{job="$job"}[$__rate_interval])'
        },
        none=_NO_NODE,
    ),
    lines(
        "Not acknowledged",
        "none",
        "Unrolls that a node's samplers keep.",
        {"{{instance}}": 'headrace_node_samplers_unacked_fragments{job="$job"}'},
        none=_NO_NODE,
    ),
)

_ACTING = (
    lines(
        "Rows that the act process acted on",
        "short",
        "A second, by node. Far fewer than agent steps: samplers act by themselves.",
        {"{{instance}}": 'rate(headrace_node_act_rows_total{job="$job"}[$__rate_interval])'},
        none=_NO_ACT,
    ),
    lines(
        "Rows of a call",
        "short",
        "Of all samplers that asked meanwhile.",
        {
            "{{instance}}": 'rate(headrace_node_act_rows_total{job="$job"}[$__rate_interval])'
            ' / rate(headrace_node_act_calls_total{job="$job"}[$__rate_interval])'
        },
        none=_NO_ACT,
    ),
    lines(
        "Busy",
        "percentunit",
        "The act process's time in the network. Near 100 %: samplers wait for it.",
        {"{{instance}}": 'rate(headrace_node_act_seconds_total{job="$job"}[$__rate_interval])'},
        none=_NO_ACT,
    ),
)

BOARD = Board(
    name="hosts",
    title="Hosts",
    words="Cores, memory and descriptors of every process, and the nodes with their samplers.",
    rows=(
        Row("Processes", _PROCESSES),
        Row("Nodes", _NODES),
        Row("Acting for all samplers of a node", _ACTING),
    ),
)
