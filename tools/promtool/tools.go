//go:build tools

// Package promtool names the checker of docker/monitoring's alerts, so that go.mod pins it.
package promtool

import _ "github.com/prometheus/prometheus/cmd/promtool"
