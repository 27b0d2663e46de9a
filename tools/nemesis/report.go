package main

import (
	"fmt"
	"sync"
)

// Report prints a line for each check and counts them.
type Report struct {
	sync.Mutex
	passed, failed int
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
		word = "FAIL "
	}
	if detail != "" {
		detail = " (" + detail + ")"
	}
	fmt.Printf("%s %s%s\n", word, what, detail)
	if !ok {
		for _, line := range excerpt {
			fmt.Println("        " + line)
		}
	}
	return ok
}

func (r *Report) note(format string, args ...any) {
	r.Lock()
	defer r.Unlock()
	fmt.Printf("      "+format+"\n", args...)
}
