-- Leads Neovim through a program as a person would, and writes what it shows as JSON: $SHARD_PROGRAM -> $SHARD_TOLD.
local told = {}
local minute = 60000

local function lines()
  return vim.api.nvim_buf_get_lines(0, 0, -1, false)
end

-- Puts the cursor on the first place of a text, some characters on.
local function at(text, more)
  for row, line in ipairs(lines()) do
    local column = line:find(text, 1, true)
    if column then
      vim.api.nvim_win_set_cursor(0, { row, column - 1 + (more or 0) })
      return
    end
  end
  error("no line has " .. text)
end

local function change(from, to)
  at(from)
  local row = vim.api.nvim_win_get_cursor(0)[1]
  local line = vim.api.nvim_get_current_line()
  local start, ending = line:find(from, 1, true)
  vim.api.nvim_buf_set_lines(0, row - 1, row, true, { line:sub(1, start - 1) .. to .. line:sub(ending + 1) })
end

-- past: at the end of the line, where only a cursor that inserts may be.
local function asked(method, past)
  local of = vim.lsp.util.make_position_params()
  if past then of.position.character = #vim.api.nvim_get_current_line() end
  local answers = vim.lsp.buf_request_sync(0, method, of, minute)
  for _, answer in pairs(answers or {}) do
    assert(not answer.error, vim.inspect(answer.error))
    return answer.result
  end
end

local function mistakes(count)
  vim.wait(minute, function() return #vim.diagnostic.get(0) == count end, 20)
  return vim.tbl_map(function(each)
    return { each.lnum, each.col, each.code or each.user_data.lsp.code, each.message }
  end, vim.diagnostic.get(0))
end

local function lead()
  vim.cmd("edit " .. vim.env.SHARD_PROGRAM)
  told.filetype = vim.bo.filetype
  assert(vim.wait(minute, function()
    local _, client = next(vim.lsp.buf_get_clients(0))
    return client and client.initialized
  end, 20), "the server did not start")

  change("= up(image)", "= upp(image)")
  told.mistakes = mistakes(1)
  vim.cmd("silent undo")
  told.undone = mistakes(0)

  at("h = up(image)")
  vim.wait(minute, function()
    told.hover = asked("textDocument/hover")
    return told.hover and told.hover.contents.value:find("@") ~= nil
  end, 100)

  at("= up(image)", 2)
  vim.lsp.buf.definition()
  vim.wait(minute, function() return vim.api.nvim_get_current_line():find("layer up") ~= nil end, 20)
  told.definition = vim.api.nvim_get_current_line()

  change("split batch over dp", "split batch over ")
  local offered = asked("textDocument/completion", true)
  told.completion = vim.tbl_map(function(each) return each.label end, offered.items or offered)
  vim.cmd("silent undo")

  at("hidden")
  vim.lsp.buf.rename("wide")
  vim.wait(minute, function() return not table.concat(lines(), "\n"):find("hidden") end, 20)
  told.renamed = lines()
end

local _, failed = xpcall(lead, debug.traceback)
told.failed = failed
vim.fn.writefile({ vim.fn.json_encode(told) }, vim.env.SHARD_TOLD)
vim.cmd("qall!")
