-- What the admin page shows of some locks.
--
-- KEYS     for each lock N, {N}:queue
-- Answers  for each lock: {fence, state, holder, since (µs), remaining (ms), waiters}; remaining < 0: no longer held

local answers = {}
for i = 1, #KEYS / 2 do
  local name, queue = KEYS[2 * i - 1], KEYS[2 * i]
  local fields = redis.pcall('HMGET', name, 'fence', 'state', 'holder', 'since')
  if fields.err or not fields[1] then -- no lock of ours is there: over, or a stranger's key
    answers[i] = {'0', '', '', '0', -1, 0}
  else
    local waiters = redis.pcall('ZCARD', queue)
    answers[i] = {
      fields[1], fields[2] or '', fields[3] or '', fields[4] or '0', redis.call('PTTL', name),
      type(waiters) == 'number' and waiters or 0,
    }
  end
end
return answers
