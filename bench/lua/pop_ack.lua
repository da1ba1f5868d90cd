-- Pops one message and acks it, in turns: pop_ack.lua DIALECT QUEUE
-- Requests belong to a thread, so the ack of a message may go out on another connection.
-- `acked` and `missed` are read by `done`: the acks sent, and the pops that received nothing.
local waiting, number, queue, pop, ack = {}, 0, nil, nil, nil
acked, missed = 0, 0

local function post(path, body)
  return wrk.format("POST", path, { ["content-type"] = "application/json" }, body)
end

local same -- a request that does not change

local pops = {
  native = function()
    same = same or post("/v1/pop", '{"queue":"' .. queue .. '","group":"g","consumer":"c"}')
    return same
  end,
  queen = function()
    same = same or wrk.format("GET", "/api/v1/pop/queue/" .. queue .. "?consumerGroup=g")
    return same
  end,
  pushpop = function() -- a lock covers a queue, so each pop uses another one
    number = number % 256 + 1
    return post("/queue/" .. queue .. "-" .. number .. "/pop?require_ack=true")
  end,
}

local acks = {
  native = function(body)
    local token = body:match('"token":(-?%d+)')
    return token and post("/v1/verbs/settle", '[false,[' .. token .. ',[{"verdict":{"verb":"ack"}}]]]')
  end,
  queen = function(body)
    local lease = body:match('"leaseId":"([^"]+)"')
    return lease and post("/api/v1/ack", string.format(
      '{"transactionId":"%s","partitionId":"%s","leaseId":"%s","consumerGroup":"g","status":"completed"}',
      body:match('"transactionId":"([^"]+)"'), body:match('"partitionId":"([^"]+)"'), lease))
  end,
  pushpop = function(body)
    local lock = body:match('"lock_id":"([^"]+)"')
    return lock and post("/queue/" .. queue .. "-" .. body:match('"lane":(%d+)') .. "/acknowledge",
      '{"lock_id":"' .. lock .. '"}')
  end,
}

local threads = {}

function setup(thread)
  table.insert(threads, thread)
end

function init(args)
  pop, ack, queue = pops[args[1]], acks[args[1]], args[2]
end

function request()
  local next = table.remove(waiting, 1)
  if next then
    acked = acked + 1
  end
  return next or pop()
end

function response(status, headers, body)
  local next = ack(body)
  if next then
    table.insert(waiting, next)
  elseif status == 204 or body:find('"runs":[]', 1, true) or body:find('"count":0', 1, true) then
    missed = missed + 1
  end
end

function done(summary, latency)
  local errors, pairs, failed = summary.errors, 0, 0
  for _, thread in ipairs(threads) do
    pairs, failed = pairs + thread:get("acked"), failed + thread:get("missed")
  end
  failed = failed + errors.connect + errors.read + errors.write + errors.status + errors.timeout
  print(string.format("result %d %d %d %d", pairs, summary.duration, failed, latency:percentile(50)))
end
