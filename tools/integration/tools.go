//go:build tools

// Package integration pins etcd's own integration tests.
package integration

import (
	_ "go.etcd.io/etcd/tests/v3/framework"
)
