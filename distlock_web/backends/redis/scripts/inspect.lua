-- What the admin page shows of some locks.
--
-- KEYS     for each lock N, {N}:queue
-- Answers  for each lock: {fence, state, holder, since (µs), remaining (ms), waiters, first}; where several share it the first
--          five are lists, of all that hold it, and their tokens' numbers follow (see _sharing.lua)
--          remaining < 0: no longer held; first: the µs at which the first waiter came, or ''

local call = redis.call

-- How many wait, and since when the first of them. `owner`: the process that has the lock; nil: several have it.
local function waiters(queue, owner)
  local count, seen = 0, false
  local processes = call('ZRANGE', queue, '0', '-1', 'WITHSCORES')
  for i = 1, #processes, 2 do
    count = count + call('ZCARD', queue .. ':' .. processes[i])
    seen = seen or processes[i] == owner
  end
  local first = processes[2]
  if owner and not seen then -- those who stand aside: see _hand_over.lua
    local line = queue .. ':' .. owner
    local aside = call('ZRANGE', line, '0', '0', 'WITHSCORES')[2]
    if aside then
      count = count + call('ZCARD', line)
      first = first and tonumber(first) < tonumber(aside) and first or aside
    end
  end
  return count, first or ''
end

-- Of a lock that several hold.
local function shares(name, queue)
  local time = call('TIME')
  local now, fields = time[1] * 1000000 + time[2], redis.pcall('HGETALL', name)
  local answer = {{}, {}, {}, {}, {}, 0, '', {}}
  for i = 1, #fields, 2 do
    local ends, state, fence, since, holder = string.match(fields[i + 1], '^(%d+) (%l+) (%d+) (%d+) (.*)$')
    local left = ends and math.ceil((ends - now) / 1000) or 0
    if left > 0 and state ~= 'released' and state ~= 'revoked' and #fence <= 16 and #since <= 16 then
      local line = {fence, state == 'granted' and 'held' or state, holder, since, left}
      for column = 1, 5 do
        table.insert(answer[column], line[column])
      end
      table.insert(answer[8], string.match(fields[i], '/(%d+)$') or '1')
    end
  end
  answer[6], answer[7] = waiters(queue)
  return answer
end

local answers = {}
for i = 1, #KEYS / 2 do
  local name, queue = KEYS[2 * i - 1], KEYS[2 * i]
  local value = redis.pcall('GET', name)
  local token, state, fence, since, holder
  if type(value) == 'string' then
    token, state, fence, since, holder = string.match(value, '^(%S+) (%l+) (%d+) (%d+) %S+ ([^\n]*)')
  end
  if type(value) == 'table' and call('TYPE', name).ok == 'hash' then
    answers[i] = shares(name, queue)
  elseif not token or state == 'released' or state == 'revoked' or #fence > 16 or #since > 16 then -- over, or not ours
    answers[i] = {'0', '', '', '0', -1, 0, ''}
  else
    local count, first = waiters(queue, string.sub(token, 1, 16))
    answers[i] = {
      fence, (state == 'contended' or state == 'granted') and 'held' or state, holder, since, call('PTTL', name), count, first,
    }
  end
end
return answers
