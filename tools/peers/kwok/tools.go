//go:build tools

// Package kwok names the fake kubelets, so that a control plane has nodes without machines.
package kwok

import _ "sigs.k8s.io/kwok/cmd/kwok"
