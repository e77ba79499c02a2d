#!/usr/bin/env bash
# Several runs on one node, each on a GPU of its own: the seeds 0, 1, ... of one run at the same time.
#
#   examples/cluster/share_node.sh "0 1 2 3 4 5" runs/bandit --recipe smollm2-135m-bandit
#
# Each run sees one GPU (CUDA_VISIBLE_DEVICES), starts a Ray of its own, whose ports and folder Ray chooses itself, and
# takes its share of the cores. The same command again resumes the runs that stopped. Ctrl-C stops all of them.
set -euo pipefail

read -r -a gpus <<<"${1:?usage: share_node.sh "GPU GPU ..." FOLDER [ragen-agent train options]}"
out=${2:?usage: share_node.sh "GPU GPU ..." FOLDER [ragen-agent train options]}
shift 2
mkdir -p "$out"
unset RAY_ADDRESS # or all of them would join one cluster
# Each Ray would reserve 30 % of the machine's memory for its objects, of which a run needs little.
export RAY_DEFAULT_OBJECT_STORE_MEMORY_PROPORTION=${RAY_DEFAULT_OBJECT_STORE_MEMORY_PROPORTION:-0.05}

threads=$(($(nproc) / ${#gpus[@]}))
pids=()
trap 'kill -INT "${pids[@]}" 2>/dev/null || true' INT TERM
for seed in "${!gpus[@]}"; do
    run=$out/seed$seed
    if [[ -d $run ]]; then
        words=(--resume "$run")
    else
        words=(--backend openrlhf "$@" --seed "$seed" --set "threads=$((threads > 0 ? threads : 1))" --out "$run")
    fi
    CUDA_VISIBLE_DEVICES=${gpus[seed]} ragen-agent train "${words[@]}" >>"$out/seed$seed.log" 2>&1 &
    pids+=("$!")
    echo "seed $seed on GPU ${gpus[seed]}: $out/seed$seed.log"
done

failed=0
for seed in "${!pids[@]}"; do
    wait "${pids[seed]}" || {
        echo "seed $seed stopped: $(tail -n 1 "$out/seed$seed.log")" >&2
        failed=1
    }
done
exit "$failed"
