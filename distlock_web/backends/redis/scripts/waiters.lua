-- Who waits for one lock: the first of the processes in its queue, and the first of each one's waiters.
--
-- KEYS     1 N  2 {N}:queue
-- ARGV     1 how many, of either
-- Answers  holder and place (the µs at which it came) of each, by turns, in no order

local call = redis.call
local last = ARGV[1] - 1
local processes, seen = call('ZRANGE', KEYS[2], 0, last), {}
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'string' then
  table.insert(processes, string.sub(value, 1, 16)) -- those who stand aside: see _hand_over.lua
end
local answer = {}
for _, process in ipairs(processes) do
  local line = seen[process] and {} or call('ZRANGE', KEYS[2] .. ':' .. process, 0, last, 'WITHSCORES')
  seen[process] = true
  for i = 1, #line, 2 do
    table.insert(answer, string.match(line[i], '^%S+ %d+ (.*)$'))
    table.insert(answer, line[i + 1])
  end
end
return answer
