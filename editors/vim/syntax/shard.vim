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
syn region shardDims start=/\%([A-Za-z0-9_)\]]\)\@<!\[/ start=/\%(\<\%(f64\|f32\|f16\|bf16\|i64\|i32\|bool\)\s*\)\@<=\[/ end=/\]/ contains=shardDimName,shardAxis,shardAxes,shardNumber nextgroup=shardSuffix
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
syn keyword shardReserved if else return and or not
syn keyword shardTruth true false
syn keyword shardDtype f64 f32 f16 bf16 i64 i32 bool
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=attend\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_attend_name_attend skipwhite
syn match shard_attend_name_attend /\<\h\w*\>/ contained nextgroup=shard_attend_name_attend skipwhite
hi def link shard_attend_name_attend Special
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=bucket\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_bucket_word_gradients skipwhite
syn match shard_bucket_value /\d[0-9A-Za-z_.]*/ contained
hi def link shard_bucket_value Number
syn region shard_bucket_value start=/"/ skip=/\\./ end=/"\|$/ contained
syn match shard_bucket_word_auto /\<auto\>/ contained
hi def link shard_bucket_word_auto shardKeyword
syn match shard_bucket_word_gradients /\<gradients\>/ contained nextgroup=shard_bucket_value,shard_bucket_word_auto skipwhite
hi def link shard_bucket_word_gradients shardKeyword
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=chunks\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_chunks_value skipwhite
syn match shard_chunks_value /\d[0-9A-Za-z_.]*/ contained
hi def link shard_chunks_value Number
syn region shard_chunks_value start=/"/ skip=/\\./ end=/"\|$/ contained
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=cluster\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_cluster_name_hardware skipwhite
syn match shard_cluster_name_hardware /\<\h\w*\>/ contained
hi def link shard_cluster_name_hardware Type
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=device\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_device_name_hardware skipwhite
syn match shard_device_name_hardware /\<\h\w*\>/ contained
hi def link shard_device_name_hardware Type
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=dim\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_dim_name_dim_entry skipwhite
syn match shard_dim_name_dim_entry /\<\h\w*\>/ contained nextgroup=shard_dim_sign_comma,shard_dim_sign_is skipwhite
hi def link shard_dim_name_dim_entry Constant
syn match shard_dim_sign_comma /\V,/ contained nextgroup=shard_dim_name_dim_entry skipwhite
syn match shard_dim_sign_is /\V=/ contained nextgroup=shard_dim_value skipwhite
syn match shard_dim_value /\d[0-9A-Za-z_.]*/ contained nextgroup=shard_dim_sign_comma,shard_dim_sign_is skipwhite
hi def link shard_dim_value Number
syn region shard_dim_value start=/"/ skip=/\\./ end=/"\|$/ contained nextgroup=shard_dim_sign_comma,shard_dim_sign_is skipwhite
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=flops\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_flops_value skipwhite
syn match shard_flops_value /\d[0-9A-Za-z_.]*/ contained
hi def link shard_flops_value Number
syn region shard_flops_value start=/"/ skip=/\\./ end=/"\|$/ contained
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=fn\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_fn_name_function skipwhite
syn match shard_fn_name_function /\<\h\w*\>/ contained nextgroup=shard_fn_sign_comma,shard_fn_sign_gives,shard_fn_value skipwhite
hi def link shard_fn_name_function Function
syn match shard_fn_sign_comma /\V,/ contained nextgroup=shard_fn_value skipwhite
syn match shard_fn_sign_gives /\V->/ contained nextgroup=shard_fn_value skipwhite
syn match shard_fn_value /\d[0-9A-Za-z_.]*/ contained nextgroup=shard_fn_sign_comma,shard_fn_sign_gives,shard_fn_value skipwhite
hi def link shard_fn_value Number
syn region shard_fn_value start=/"/ skip=/\\./ end=/"\|$/ contained nextgroup=shard_fn_sign_comma,shard_fn_sign_gives,shard_fn_value skipwhite
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=forward\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_forward_value skipwhite
syn match shard_forward_sign_comma /\V,/ contained nextgroup=shard_forward_value skipwhite
syn match shard_forward_sign_gives /\V->/ contained nextgroup=shard_forward_value skipwhite
syn match shard_forward_value /\d[0-9A-Za-z_.]*/ contained nextgroup=shard_forward_sign_comma,shard_forward_sign_gives skipwhite
hi def link shard_forward_value Number
syn region shard_forward_value start=/"/ skip=/\\./ end=/"\|$/ contained nextgroup=shard_forward_sign_comma,shard_forward_sign_gives skipwhite
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=inside\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_inside_name_inside skipwhite
syn match shard_inside_name_inside /\<\h\w*\>/ contained nextgroup=shard_inside_sign_comma skipwhite
hi def link shard_inside_name_inside Constant
syn match shard_inside_sign_comma /\V,/ contained nextgroup=shard_inside_name_inside skipwhite
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=keeps\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_keeps_name_keeps skipwhite
syn match shard_keeps_name_keeps /\<\h\w*\>/ contained nextgroup=shard_keeps_sign_comma skipwhite
hi def link shard_keeps_name_keeps Identifier
syn match shard_keeps_sign_comma /\V,/ contained nextgroup=shard_keeps_name_keeps skipwhite
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=layer\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_layer_name_layer skipwhite
syn match shard_layer_name_layer /\<\h\w*\>/ contained nextgroup=shard_layer_sign_is,shard_layer_value skipwhite
hi def link shard_layer_name_layer Identifier
syn match shard_layer_sign_is /\V=/ contained nextgroup=shard_layer_value skipwhite
syn match shard_layer_value /\d[0-9A-Za-z_.]*/ contained nextgroup=shard_layer_sign_is,shard_layer_value skipwhite
hi def link shard_layer_value Number
syn region shard_layer_value start=/"/ skip=/\\./ end=/"\|$/ contained nextgroup=shard_layer_sign_is,shard_layer_value skipwhite
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=level\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_level_name_level skipwhite
syn match shard_level_name_level /\<\h\w*\>/ contained
hi def link shard_level_name_level Type
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=linear\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_linear_name_axes,shard_linear_names_axes skipwhite
syn match shard_linear_name_axes /\<\h\w*\>/ contained
hi def link shard_linear_name_axes Identifier
syn region shard_linear_names_axes start=/(/ end=/)/ contained contains=shard_linear_names_axes_,shard_linear_names_axes,shardNumber
syn match shard_linear_names_axes_ /\<\h\w*\>/ contained
hi def link shard_linear_names_axes_ Identifier
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=mesh\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_mesh_name_mesh_axis skipwhite
syn match shard_mesh_name_mesh_axis /\<\h\w*\>/ contained nextgroup=shard_mesh_sign_comma,shard_mesh_sign_is skipwhite
hi def link shard_mesh_name_mesh_axis PreProc
syn match shard_mesh_sign_comma /\V,/ contained nextgroup=shard_mesh_name_mesh_axis skipwhite
syn match shard_mesh_sign_is /\V=/ contained nextgroup=shard_mesh_value,shard_mesh_word_auto skipwhite
syn match shard_mesh_value /\d[0-9A-Za-z_.]*/ contained nextgroup=shard_mesh_sign_comma,shard_mesh_sign_is skipwhite
hi def link shard_mesh_value Number
syn region shard_mesh_value start=/"/ skip=/\\./ end=/"\|$/ contained nextgroup=shard_mesh_sign_comma,shard_mesh_sign_is skipwhite
syn match shard_mesh_word_auto /\<auto\>/ contained nextgroup=shard_mesh_sign_comma skipwhite
hi def link shard_mesh_word_auto shardKeyword
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=metric\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_metric_name_setting skipwhite
syn match shard_metric_name_setting /\<\h\w*\>/ contained nextgroup=shard_metric_sign_is skipwhite
hi def link shard_metric_name_setting Identifier
syn match shard_metric_sign_is /\V=/ contained nextgroup=shard_metric_value skipwhite
syn match shard_metric_value /\d[0-9A-Za-z_.]*/ contained nextgroup=shard_metric_sign_is skipwhite
hi def link shard_metric_value Number
syn region shard_metric_value start=/"/ skip=/\\./ end=/"\|$/ contained nextgroup=shard_metric_sign_is skipwhite
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=microbatches\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_microbatches_value,shard_microbatches_word_auto skipwhite
syn match shard_microbatches_value /\d[0-9A-Za-z_.]*/ contained
hi def link shard_microbatches_value Number
syn region shard_microbatches_value start=/"/ skip=/\\./ end=/"\|$/ contained
syn match shard_microbatches_word_auto /\<auto\>/ contained
hi def link shard_microbatches_word_auto shardKeyword
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=model\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_model_name_model skipwhite
syn match shard_model_name_model /\<\h\w*\>/ contained nextgroup=shard_model_value skipwhite
hi def link shard_model_name_model Type
syn match shard_model_value /\d[0-9A-Za-z_.]*/ contained nextgroup=shard_model_value skipwhite
hi def link shard_model_value Number
syn region shard_model_value start=/"/ skip=/\\./ end=/"\|$/ contained nextgroup=shard_model_value skipwhite
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=needs\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_needs_name_needs skipwhite
syn match shard_needs_name_needs /\<\h\w*\>/ contained nextgroup=shard_needs_name_needs skipwhite
hi def link shard_needs_name_needs Special
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=operator\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_operator_name_operator skipwhite
syn match shard_operator_name_operator /\<\h\w*\>/ contained nextgroup=shard_operator_sign_gives,shard_operator_value skipwhite
hi def link shard_operator_name_operator Function
syn match shard_operator_sign_gives /\V->/ contained nextgroup=shard_operator_value skipwhite
syn match shard_operator_value /\d[0-9A-Za-z_.]*/ contained nextgroup=shard_operator_sign_gives,shard_operator_value skipwhite
hi def link shard_operator_value Number
syn region shard_operator_value start=/"/ skip=/\\./ end=/"\|$/ contained nextgroup=shard_operator_sign_gives,shard_operator_value skipwhite
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=optimizer\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_optimizer_name_optimizer skipwhite
syn match shard_optimizer_name_optimizer /\<\h\w*\>/ contained nextgroup=shard_optimizer_value skipwhite
hi def link shard_optimizer_name_optimizer Function
syn match shard_optimizer_value /\d[0-9A-Za-z_.]*/ contained nextgroup=shard_optimizer_value skipwhite
hi def link shard_optimizer_value Number
syn region shard_optimizer_value start=/"/ skip=/\\./ end=/"\|$/ contained nextgroup=shard_optimizer_value skipwhite
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=param\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_param_name_tensor skipwhite
syn match shard_param_name_tensor /\<\h\w*\>/ contained nextgroup=shard_param_sign_colon,shard_param_sign_is skipwhite
hi def link shard_param_name_tensor Identifier
syn match shard_param_sign_colon /\V:/ contained nextgroup=shard_param_value skipwhite
syn match shard_param_sign_is /\V=/ contained nextgroup=shard_param_value skipwhite
syn match shard_param_value /\d[0-9A-Za-z_.]*/ contained nextgroup=shard_param_sign_colon,shard_param_sign_is skipwhite
hi def link shard_param_value Number
syn region shard_param_value start=/"/ skip=/\\./ end=/"\|$/ contained nextgroup=shard_param_sign_colon,shard_param_sign_is skipwhite
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=place\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_place_word_auto,shard_place_word_on,shard_place_word_saved skipwhite
syn match shard_place_name_place /\<\h\w*\>/ contained
hi def link shard_place_name_place Special
syn match shard_place_word_auto /\<auto\>/ contained
hi def link shard_place_word_auto shardKeyword
syn match shard_place_word_on /\<on\>/ contained nextgroup=shard_place_name_place skipwhite
hi def link shard_place_word_on shardKeyword
syn match shard_place_word_saved /\<saved\>/ contained nextgroup=shard_place_word_on skipwhite
hi def link shard_place_word_saved shardKeyword
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=python\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_python_value skipwhite
syn match shard_python_name_python /\<\h\w*\>/ contained nextgroup=shard_python_sign_colon skipwhite
hi def link shard_python_name_python Function
syn match shard_python_sign_colon /\V:/ contained nextgroup=shard_python_name_python skipwhite
syn match shard_python_value /\d[0-9A-Za-z_.]*/ contained nextgroup=shard_python_sign_colon skipwhite
hi def link shard_python_value Number
syn region shard_python_value start=/"/ skip=/\\./ end=/"\|$/ contained nextgroup=shard_python_sign_colon skipwhite
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=recompute\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_recompute_name_recompute,shard_recompute_word_auto skipwhite
syn match shard_recompute_name_recompute /\<\h\w*\>/ contained nextgroup=shard_recompute_name_recompute skipwhite
hi def link shard_recompute_name_recompute Special
syn match shard_recompute_word_auto /\<auto\>/ contained
hi def link shard_recompute_word_auto shardKeyword
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=reduces\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_reduces_value skipwhite
syn match shard_reduces_sign_comma /\V,/ contained nextgroup=shard_reduces_value skipwhite
syn match shard_reduces_value /\d[0-9A-Za-z_.]*/ contained nextgroup=shard_reduces_sign_comma skipwhite
hi def link shard_reduces_value Number
syn region shard_reduces_value start=/"/ skip=/\\./ end=/"\|$/ contained nextgroup=shard_reduces_sign_comma skipwhite
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=schedule\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_schedule_name_own_schedule,shard_schedule_value,shard_schedule_word_auto skipwhite
syn match shard_schedule_name_own_schedule /\<\h\w*\>/ contained nextgroup=shard_schedule_value skipwhite
hi def link shard_schedule_name_own_schedule Function
syn match shard_schedule_value /\d[0-9A-Za-z_.]*/ contained nextgroup=shard_schedule_value skipwhite
hi def link shard_schedule_value Number
syn region shard_schedule_value start=/"/ skip=/\\./ end=/"\|$/ contained nextgroup=shard_schedule_value skipwhite
syn match shard_schedule_word_auto /\<auto\>/ contained
hi def link shard_schedule_word_auto shardKeyword
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=shard\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_shard_names_shard_entry,shard_shard_value skipwhite
syn region shard_shard_names_shard_entry start=/(/ end=/)/ contained contains=shard_shard_names_shard_entry_,shard_shard_names_shard_entry,shardNumber nextgroup=shard_shard_sign_gives skipwhite
syn match shard_shard_names_shard_entry_ /\<\h\w*\>/ contained
hi def link shard_shard_names_shard_entry_ PreProc
syn match shard_shard_sign_gives /\V->/ contained nextgroup=shard_shard_names_shard_entry,shard_shard_value skipwhite
syn match shard_shard_value /\d[0-9A-Za-z_.]*/ contained nextgroup=shard_shard_sign_gives skipwhite
hi def link shard_shard_value Number
syn region shard_shard_value start=/"/ skip=/\\./ end=/"\|$/ contained nextgroup=shard_shard_sign_gives skipwhite
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=source\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_source_name_source skipwhite
syn match shard_source_name_source /\<\h\w*\>/ contained nextgroup=shard_source_sign_gives,shard_source_value skipwhite
hi def link shard_source_name_source Function
syn match shard_source_sign_gives /\V->/ contained nextgroup=shard_source_value skipwhite
syn match shard_source_value /\d[0-9A-Za-z_.]*/ contained nextgroup=shard_source_sign_gives,shard_source_value skipwhite
hi def link shard_source_value Number
syn region shard_source_value start=/"/ skip=/\\./ end=/"\|$/ contained nextgroup=shard_source_sign_gives,shard_source_value skipwhite
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=split\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_split_name_dim_path,shard_split_word_auto skipwhite
syn match shard_split_name_axis_use /\<\h\w*\>/ contained nextgroup=shard_split_sign_comma,shard_split_sign_dot,shard_split_sign_yields,shard_split_word_over,shard_split_word_sizes,shard_split_word_uneven skipwhite
hi def link shard_split_name_axis_use PreProc
syn match shard_split_name_dim_path /\<\h\w*\>/ contained nextgroup=shard_split_sign_comma,shard_split_sign_dot,shard_split_sign_yields,shard_split_word_over,shard_split_word_sizes,shard_split_word_uneven skipwhite
hi def link shard_split_name_dim_path Constant
syn region shard_split_names_axis_use start=/(/ end=/)/ contained contains=shard_split_names_axis_use_,shard_split_names_axis_use,shardNumber nextgroup=shard_split_sign_comma,shard_split_sign_dot,shard_split_sign_yields,shard_split_word_over,shard_split_word_sizes,shard_split_word_uneven skipwhite
syn match shard_split_names_axis_use_ /\<\h\w*\>/ contained
hi def link shard_split_names_axis_use_ PreProc
syn match shard_split_sign_comma /\V,/ contained nextgroup=shard_split_name_dim_path skipwhite
syn match shard_split_sign_dot /\V./ contained nextgroup=shard_split_name_dim_path skipwhite
syn match shard_split_sign_yields /\V?/ contained nextgroup=shard_split_word_sizes,shard_split_word_uneven skipwhite
syn match shard_split_value /\d[0-9A-Za-z_.]*/ contained nextgroup=shard_split_sign_comma,shard_split_sign_dot,shard_split_sign_yields,shard_split_word_over,shard_split_word_sizes,shard_split_word_uneven skipwhite
hi def link shard_split_value Number
syn region shard_split_value start=/"/ skip=/\\./ end=/"\|$/ contained nextgroup=shard_split_sign_comma,shard_split_sign_dot,shard_split_sign_yields,shard_split_word_over,shard_split_word_sizes,shard_split_word_uneven skipwhite
syn match shard_split_word_auto /\<auto\>/ contained nextgroup=shard_split_word_over skipwhite
hi def link shard_split_word_auto shardKeyword
syn match shard_split_word_over /\<over\>/ contained nextgroup=shard_split_name_axis_use,shard_split_names_axis_use skipwhite
hi def link shard_split_word_over shardKeyword
syn match shard_split_word_sizes /\<sizes\>/ contained nextgroup=shard_split_value skipwhite
hi def link shard_split_word_sizes shardKeyword
syn match shard_split_word_uneven /\<uneven\>/ contained
hi def link shard_split_word_uneven shardKeyword
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=stages\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_stages_word_over,shardStages skipwhite
syn match shard_stages_name_stages /\<\h\w*\>/ contained nextgroup=shard_stages_sign_comma,shard_stages_word_auto,shard_stages_word_balanced,shardStages skipwhite
hi def link shard_stages_name_stages PreProc
syn match shard_stages_sign_comma /\V,/ contained nextgroup=shard_stages_word_virtual,shardStages skipwhite
syn match shard_stages_sign_is /\V=/ contained nextgroup=shard_stages_value,shardStages skipwhite
syn match shard_stages_value /\d[0-9A-Za-z_.]*/ contained nextgroup=shard_stages_sign_comma,shard_stages_word_auto,shard_stages_word_balanced,shardStages skipwhite
hi def link shard_stages_value Number
syn region shard_stages_value start=/"/ skip=/\\./ end=/"\|$/ contained nextgroup=shard_stages_sign_comma,shard_stages_word_auto,shard_stages_word_balanced,shardStages skipwhite
syn match shard_stages_word_auto /\<auto\>/ contained nextgroup=shard_stages_sign_comma,shardStages skipwhite
hi def link shard_stages_word_auto shardKeyword
syn match shard_stages_word_balanced /\<balanced\>/ contained nextgroup=shard_stages_sign_comma,shardStages skipwhite
hi def link shard_stages_word_balanced shardKeyword
syn match shard_stages_word_over /\<over\>/ contained nextgroup=shard_stages_name_stages,shardStages skipwhite
hi def link shard_stages_word_over shardKeyword
syn match shard_stages_word_virtual /\<virtual\>/ contained nextgroup=shard_stages_sign_is,shardStages skipwhite
hi def link shard_stages_word_virtual shardKeyword
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=state\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_state_name_remembers,shard_state_name_tensor skipwhite
syn match shard_state_name_remembers /\<\h\w*\>/ contained nextgroup=shard_state_sign_colon,shard_state_sign_is,shard_state_word_like skipwhite
hi def link shard_state_name_remembers Identifier
syn match shard_state_name_tensor /\<\h\w*\>/ contained nextgroup=shard_state_sign_colon,shard_state_sign_is,shard_state_word_like skipwhite
hi def link shard_state_name_tensor Identifier
syn match shard_state_sign_colon /\V:/ contained nextgroup=shard_state_value skipwhite
syn match shard_state_sign_is /\V=/ contained nextgroup=shard_state_value skipwhite
syn match shard_state_value /\d[0-9A-Za-z_.]*/ contained nextgroup=shard_state_sign_colon,shard_state_sign_is,shard_state_word_like skipwhite
hi def link shard_state_value Number
syn region shard_state_value start=/"/ skip=/\\./ end=/"\|$/ contained nextgroup=shard_state_sign_colon,shard_state_sign_is,shard_state_word_like skipwhite
syn match shard_state_word_like /\<like\>/ contained nextgroup=shard_state_name_remembers skipwhite
hi def link shard_state_word_like shardKeyword
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=strategy\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_strategy_name_strategy skipwhite
syn match shard_strategy_name_strategy /\<\h\w*\>/ contained
hi def link shard_strategy_name_strategy Type
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=strict\>\%(\s*\%(==\@!\|,\)\)\@!/
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=train\>\%(\s*\%(==\@!\|,\)\)\@!/
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=use\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_use_name_path,shard_use_value skipwhite
syn match shard_use_name_path /\<\h\w*\>/ contained nextgroup=shard_use_sign_colon,shard_use_sign_comma,shard_use_sign_dot skipwhite
hi def link shard_use_name_path Type
syn match shard_use_name_use /\<\h\w*\>/ contained nextgroup=shard_use_sign_colon,shard_use_sign_comma,shard_use_sign_dot skipwhite
hi def link shard_use_name_use Type
syn match shard_use_sign_comma /\V,/ contained nextgroup=shard_use_name_use skipwhite
syn match shard_use_sign_dot /\V./ contained nextgroup=shard_use_name_path skipwhite
syn match shard_use_sign_colon /\V:/ contained nextgroup=shard_use_name_use skipwhite
syn match shard_use_value /\d[0-9A-Za-z_.]*/ contained nextgroup=shard_use_sign_colon,shard_use_sign_comma,shard_use_sign_dot skipwhite
hi def link shard_use_value Number
syn region shard_use_value start=/"/ skip=/\\./ end=/"\|$/ contained nextgroup=shard_use_sign_colon,shard_use_sign_comma,shard_use_sign_dot skipwhite
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=whole\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_whole_name_whole skipwhite
syn match shard_whole_name_whole /\<\h\w*\>/ contained nextgroup=shard_whole_sign_comma skipwhite
hi def link shard_whole_name_whole Constant
syn match shard_whole_sign_comma /\V,/ contained nextgroup=shard_whole_name_whole skipwhite
syn match shardKeyword /\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<=zero\>\%(\s*\%(==\@!\|,\)\)\@!/ nextgroup=shard_zero_value,shard_zero_word_auto skipwhite
syn match shard_zero_name_axes /\<\h\w*\>/ contained nextgroup=shard_zero_sign_comma,shard_zero_word_over skipwhite
hi def link shard_zero_name_axes PreProc
syn match shard_zero_name_zero /\<\h\w*\>/ contained nextgroup=shard_zero_sign_comma,shard_zero_word_over skipwhite
hi def link shard_zero_name_zero Special
syn region shard_zero_names_axes start=/(/ end=/)/ contained contains=shard_zero_names_axes_,shard_zero_names_axes,shardNumber nextgroup=shard_zero_sign_comma,shard_zero_word_over skipwhite
syn match shard_zero_names_axes_ /\<\h\w*\>/ contained
hi def link shard_zero_names_axes_ PreProc
syn match shard_zero_sign_comma /\V,/ contained nextgroup=shard_zero_name_zero skipwhite
syn match shard_zero_value /\d[0-9A-Za-z_.]*/ contained nextgroup=shard_zero_sign_comma,shard_zero_word_over skipwhite
hi def link shard_zero_value Number
syn region shard_zero_value start=/"/ skip=/\\./ end=/"\|$/ contained nextgroup=shard_zero_sign_comma,shard_zero_word_over skipwhite
syn match shard_zero_word_auto /\<auto\>/ contained nextgroup=shard_zero_word_over skipwhite
hi def link shard_zero_word_auto shardKeyword
syn match shard_zero_word_over /\<over\>/ contained nextgroup=shard_zero_name_axes,shard_zero_names_axes skipwhite
hi def link shard_zero_word_over shardKeyword
syn match shardSetting /^\s*\zs\h\w*\ze\s\+at\s\+[A-Za-z_*]/ nextgroup=shardAt skipwhite
let b:current_syntax = "shard"
