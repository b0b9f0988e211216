autocmd BufRead,BufNewFile *.shard setfiletype shard
