package main

import (
	"fmt"
	"io"
	"sync"
)

// Report prints a line for each check and counts them.
type Report struct {
	sync.Mutex
	to             io.Writer
	passed, failed int
	failures       []string
}

// check says whether something held; `detail` is told either way, `excerpt` only of a failure.
func (r *Report) check(ok bool, what, detail string, excerpt ...string) bool {
	r.Lock()
	defer r.Unlock()
	word := "ok   "
	if ok {
		r.passed++
	} else {
		r.failed++
		r.failures = append(r.failures, what)
		word = "FAIL "
	}
	if detail != "" {
		detail = " (" + detail + ")"
	}
	fmt.Fprintf(r.to, "%s %s%s\n", word, what, detail)
	if !ok {
		for _, line := range excerpt {
			fmt.Fprintln(r.to, "        "+line)
		}
	}
	return ok
}

func (r *Report) note(format string, args ...any) {
	r.Lock()
	defer r.Unlock()
	fmt.Fprintf(r.to, "      "+format+"\n", args...)
}
