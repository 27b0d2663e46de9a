//go:build tools

// Package etcd names the programs of the etcd release that eddy is compared with, so that go.mod pins them.
package etcd

import (
	_ "go.etcd.io/bbolt/cmd/bbolt"
	_ "go.etcd.io/etcd/etcdctl/v3"
	_ "go.etcd.io/etcd/etcdutl/v3"
	_ "go.etcd.io/etcd/server/v3"
)
