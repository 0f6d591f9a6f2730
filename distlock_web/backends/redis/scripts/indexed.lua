-- Which of some slots have an index, of all that this node of a cluster serves. A script may look at several slots if it
-- declares neither keys nor flags.
--
-- ARGV     1 what an index's key begins with  2... the tags that end them
-- Answers  places among the tags, from 0: of those that have one, or are not here

local found = {}
for i = 2, #ARGV do
  local there = redis.pcall('EXISTS', ARGV[1] .. '{' .. ARGV[i] .. '}')
  if there ~= 0 then
    found[#found + 1] = i - 2
  end
end
return found
