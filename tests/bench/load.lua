-- For wrk: what to send comes from the environment; what was measured goes out as one line of JSON.
-- MEAN_DELAY_MS > 0: connections think between requests, for a random time of that mean, so that
-- requests come as they do from many callers who know nothing of each other.
wrk.method = os.getenv("METHOD")
wrk.body = os.getenv("BODY")
wrk.headers["Content-Type"] = "application/json"

local mean_delay_ms = tonumber(os.getenv("MEAN_DELAY_MS"))
if mean_delay_ms > 0 then
   function delay()
      return math.floor(-mean_delay_ms * math.log(1 - math.random()) + 0.5)
   end
end

function done(summary, latency)
   local errors = summary.errors
   local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
   io.write(string.format(
      'measured {"requests": %d, "seconds": %f, "failed": %d, "p50_ms": %f, "p99_ms": %f}\n',
      summary.requests, summary.duration / 1e6, failed,
      latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
