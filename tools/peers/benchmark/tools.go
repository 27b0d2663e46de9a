//go:build tools

// Package benchmark names etcd's load generator. It lives in a module of its own because its last published version
// needs an older etcd client than the server that eddy is compared with.
package benchmark

import _ "go.etcd.io/etcd/v3/tools/benchmark"
