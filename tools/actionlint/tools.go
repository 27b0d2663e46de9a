//go:build tools

// Package actionlint names the checker of .github/workflows, so that go.mod pins it.
package actionlint

import _ "github.com/rhysd/actionlint/cmd/actionlint"
