#!/usr/bin/env bash
# A distributed run on the nodes of a Slurm job, joined by Ray; the same command again resumes it.
#
#   sbatch --nodes 8 examples/cluster/slurm.sh qwen3-4b-sokoban-64gpu /shared/runs/qwen3-4b
#
# Every node needs this environment at the same path (activate it before sbatch), the model's folder and the run's.
#SBATCH --job-name=ragen
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --output=%x-%j.log
set -euo pipefail

recipe=${1:?usage: sbatch slurm.sh RECIPE FOLDER [ragen-agent train options]}
folder=${2:?usage: sbatch slurm.sh RECIPE FOLDER [ragen-agent train options]}
shift 2

gpus=${SLURM_GPUS_ON_NODE:-8}
address=$(hostname --ip-address | cut -d ' ' -f 1) # a batch script runs on the first node of its job
port=$((20000 + SLURM_JOB_ID % 10000))         # one of each job, should two share a node
export RAY_ADDRESS="$address:$port"               # what openrlhf.ray_address=auto joins
export RAY_TMPDIR="/tmp/ray-$SLURM_JOB_ID"

stop() {
    ray stop --grace-period 30 || true
    rm -rf "$RAY_TMPDIR"
}
trap stop EXIT

env --unset RAY_ADDRESS ray start --head --node-ip-address "$address" --port "$port" --num-gpus "$gpus" \
    --min-worker-port 10002 --max-worker-port 19999 --include-dashboard false --disable-usage-stats
if ((SLURM_NNODES > 1)); then
    srun --nodes "$((SLURM_NNODES - 1))" --ntasks "$((SLURM_NNODES - 1))" --exclude "$(hostname)" --export ALL \
        ray start --address "$RAY_ADDRESS" --num-gpus "$gpus" --min-worker-port 10002 --max-worker-port 19999 --block &
fi

# The run counts the cluster's GPUs once, when it starts: wait until every node has joined.
for _ in $(seq 60); do
    nodes=$(python -c 'import ray; ray.init(log_to_driver=False); print(sum(n["Alive"] for n in ray.nodes()))')
    ((nodes == SLURM_NNODES)) && break
    sleep 5
done

if [[ -d $folder ]]; then
    ragen-agent train --resume "$folder"
else
    ragen-agent train --backend openrlhf --recipe "$recipe" --set openrlhf.ray_address=auto --out "$folder" "$@"
fi
