# The games over HTTP, with pictures: `docker build -t ragen-gym .`, then
# `docker run -p 8000:8000 -e RAGEN_GYM_TOKEN=$(openssl rand -hex 32) ragen-gym`.
# Clients show that token; options of `ragen-gym serve` may follow the image's name.
FROM python:3.12-slim

WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY ragen_gym ragen_gym
COPY ragen_agent ragen_agent
RUN pip install --no-cache-dir -c constraints.txt '.[serve,render]' \
    && rm -rf /src/* \
    && useradd --create-home --uid 1000 player

USER 1000
WORKDIR /home/player
ENV SDL_VIDEODRIVER=dummy SDL_AUDIODRIVER=dummy PYTHONUNBUFFERED=1

EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["ragen-gym", "serve", "--host", "0.0.0.0"]
