-- Sends the same request again and again: same.lua PATH CONTENT_TYPE BODY_FILE
local bytes

function init(args)
  local file = io.open(args[3], "rb")
  local headers = { ["content-type"] = args[2], ["accept"] = args[2] }
  bytes = wrk.format("POST", args[1], headers, file:read("*a"))
  file:close()
end

function request()
  return bytes
end

function done(summary, latency)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  print(string.format("result %d %d %d %d", summary.requests, summary.duration, failed, latency:percentile(50)))
end
