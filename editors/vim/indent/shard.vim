" A line stands two spaces further in for each brace that is open, and a line that begins with `|>` too, as `shardc fmt`
" has it. A line within brackets keeps its place.
if exists("b:did_indent")
  finish
endif
let b:did_indent = 1
setlocal indentexpr=ShardIndent() indentkeys=o,O,0},0\| autoindent nolisp
let b:undo_indent = "setlocal indentexpr< indentkeys< autoindent< lisp<"

" Where the brackets opened that are open where a line begins; 0 if none is.
function! s:Opened(number) abort
  call cursor(a:number, 1)
  let no_code = 'synIDattr(synID(line("."), col("."), 0), "name") =~# "String\\|Comment\\|Doc"'
  " No bracket is open where an item begins, in the first column.
  return searchpair('[(\[]', '', '[)\]]', 'bnW', no_code, search('^[A-Za-z}]', 'bnW'))
endfunction

" The line in which the statement of a line begins.
function! s:Start(number) abort
  let number = a:number
  while number > 1
    let opened = s:Opened(number)
    if opened == 0 && getline(number) !~# '^\s*|>'
      break
    endif
    let number = opened > 0 ? opened : prevnonblank(number - 1)
  endwhile
  return number
endfunction

" Braces opened less braces closed in the statement that ends in a line, but for a brace that it begins with.
function! s:Braces(start, end) abort
  let text = join(getline(a:start, a:end), "\n")
  let text = substitute(text, '"\%([^"\\]\|\\.\)*"\|#[^\n]*\|^\s*}', '', 'g')
  return count(text, '{') - count(text, '}')
endfunction

function! ShardIndent() abort
  if s:Opened(v:lnum) > 0
    return indent(v:lnum) > 0 ? indent(v:lnum) : -1
  endif
  let above = prevnonblank(v:lnum - 1)
  if above <= 0
    return 0
  endif
  let start = s:Start(above)
  let steps = s:Braces(start, above) - (getline(v:lnum) =~# '^\s*}') + (getline(v:lnum) =~# '^\s*|>')
  return indent(start) + shiftwidth() * steps
endfunction
