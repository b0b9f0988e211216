" Vim's colours of Shard, made from grammars/shard.lark by `python -m tests.syntax.bless`.
if exists("b:current_syntax")
  finish
endif
syn sync minlines=200
syn match shardName /\<\h\w*\>/
syn match shardOperator /[-+*\/%@^<>=?|]\+/
syn match shardFunction /\<\h\w*\>\ze\s*(/
syn match shardType /\<\u\w*\>\ze\s*(/
syn match shardFunction /\%(|>\s*\)\@<=\h\w*/
syn match shardArgument /\<\h\w*\>\ze\s*\%(==\@!\|:\s*\%(\h\|\[\)\)/
syn match shardDtype /\%(:\s*\)\@<=\%(dim\|int\|float\|bool\|str\)\>/
syn match shardDim /\%(\[\s*\)\@<=\h\w*\ze\s*==\@!/
syn region shardDims start=/\%([A-Za-z0-9_)\]]\)\@<!\[/ start=/\%(\<\%(DTYPES\)\s*\)\@<=\[/ end=/\]/ contains=shardDimName,shardAxis,shardAxes,shardNumber nextgroup=shardSuffix
syn match shardSuffix /\s*[+^]\s*\ze[A-Za-z_(]/ contained nextgroup=shardAxisName,shardAxes
syn match shardDimName /\<\h\w*\>/ contained
syn match shardAxisName /\<\h\w*\>/ contained nextgroup=shardSuffix
syn match shardAxis /\%(@\s*\)\@<=\h\w*/ contained
syn region shardAxes start=/(/ end=/)/ contained contains=shardAxisName nextgroup=shardSuffix
syn match shardSetting /^\s*\zs\h\w*\ze\%(\s*,\s*\h\w*\)*\s*==\@!/
syn match shardAt /\<at\>/ contained nextgroup=shardSelectors skipwhite
syn match shardAt /^\s*\zsat\>\ze\s\+[A-Za-z_*]/ nextgroup=shardSelectors skipwhite
syn match shardSelectors /[A-Za-z0-9_*.,\[\] \t]\+/ contained contains=shardNumber,shardSelectorSign
syn match shardSelectorSign /[*.,\[\]]/ contained
syn match shardStage /^\s*\zs[^:={}]\+:\ze\s*[A-Za-z_*]/ contained contains=shardNumber,shardOperator nextgroup=shardSelectors skipwhite
syn region shardStages start=/{/ end=/}/ contained contains=shardStage,shardComment,shardDoc
syn match shardNumber /\<\d[0-9_]*\%(\.\d[0-9_]*\)\?\%([eE][+-]\?\d\+\)\?/ nextgroup=shardUnit
syn match shardUnit /\h\w*\%(\/s\>\)\?/ contained
syn region shardString start=/"/ skip=/\\./ end=/"\|$/
syn match shardComment /#.*/ contains=@Spell
syn match shardDoc /##.*/ contains=@Spell
hi def link shardKeyword Statement
hi def link shardDeclaration Keyword
hi def link shardReserved Conditional
hi def link shardTruth Boolean
hi def link shardDtype Type
hi def link shardOperator Operator
hi def link shardFunction Function
hi def link shardType Type
hi def link shardArgument Identifier
hi def link shardAxis PreProc
hi def link shardAxisName PreProc
hi def link shardDim Constant
hi def link shardDimName Constant
hi def link shardSetting Identifier
hi def link shardAt Statement
hi def link shardSelectors Underlined
hi def link shardSelectorSign Operator
hi def link shardNumber Number
hi def link shardUnit Special
hi def link shardString String
hi def link shardComment Comment
hi def link shardDoc SpecialComment
