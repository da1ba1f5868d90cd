#!/usr/bin/env bash
# Acknowledgement with curl: lock a queue, see other pops refused, let a lock expire, pop without one.
# Start `ackflow serve` first. ACKFLOW_URL: the server; TTL: seconds of the short lock.
set -euo pipefail

URL="${ACKFLOW_URL:-http://localhost:8000}"
TTL="${TTL:-5}"
MAIN="$URL/queue/flow-my-queue"
TEST="$URL/queue/flow-test"

# post STATUS URL [BODY]: POST, print the response and store it in $answer; exit if the status differs.
post() {
    local expected="$1" url="$2" body="${3:-}" got
    got=$(curl -sS -X POST "$url" -d "$body" -w '\n%{http_code}')
    answer="${got%$'\n'*}"
    echo "  POST ${url#"$URL"} $body"
    echo "  ${got##*$'\n'} $answer"
    if [ "${got##*$'\n'}" != "$expected" ]; then
        echo "expected status $expected" >&2
        exit 1
    fi
}

# shows TEXT: exit unless the response contains the text.
shows() {
    if ! grep -qF -- "$1" <<<"$answer"; then
        echo "expected $1 in the response" >&2
        exit 1
    fi
}

# field NAME: print a field of the response.
field() {
    python3 -c 'import json, sys; print(json.loads(sys.argv[1])[sys.argv[2]])' "$answer" "$1"
}

echo "Example 1: pop with acknowledgement"
post 200 "$MAIN/push" '{"item": {"task_id": 123, "action": "send_email"}}'
post 200 "$MAIN/pop?require_ack=true"
shows '"items":[{"task_id": 123, "action": "send_email"}]'
shows '"locked":true'
post 200 "$MAIN/acknowledge" "{\"lock_id\": \"$(field lock_id)\"}"
shows '"success":true'
shows '"items_acknowledged":1'

echo "Example 2: other pops are refused while the queue is locked"
post 200 "$TEST/push" '{"item": "original"}'
post 200 "$TEST/push" '{"item": "second"}'
post 200 "$TEST/pop?require_ack=true"
shows '"items":["original"]'
lock_id=$(field lock_id)
post 423 "$TEST/pop"
shows '"message":"Queue is locked'
shows '"lock_expires_at":'
post 400 "$TEST/acknowledge" '{"lock_id": "not-the-lock"}'
post 200 "$TEST/release" "{\"lock_id\": \"$lock_id\"}"

echo "Example 3: a lock expires"
post 200 "$TEST/pop?require_ack=true&ttl_seconds=$TTL"
shows '"items":["original"]'
lock_id=$(field lock_id)
echo "  waiting until the lock expires"
sleep "$TTL.2"
post 410 "$TEST/acknowledge" "{\"lock_id\": \"$lock_id\"}"
shows '"error_code":"LOCK_EXPIRED"'
post 200 "$TEST/pop?require_ack=true"
shows '"items":["original"]'
post 200 "$TEST/acknowledge" "{\"lock_id\": \"$(field lock_id)\"}"

echo "Example 4: a plain pop needs no acknowledgement"
post 200 "$TEST/pop"
shows '"items":["second"]'
post 200 "$TEST/pop"
shows '"count":0'

echo "All examples passed"
