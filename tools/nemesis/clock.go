package main

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// libfaketime finds the library that gives a process another wall clock (Debian's package faketime); "" when it is not there.
func libfaketime() string {
	for _, pattern := range []string{"/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib/faketime/libfaketime.so.1"} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return found[0]
		}
	}
	return ""
}

// clock starts a replica again with a wall clock that is far off, ahead or behind. All others must name it in an alarm; its
// clients go on, and their leases live as long as ever.
func clock(l *Lab, story *Story, hold time.Duration) error {
	order := l.chosen()
	r, off := order[0], []string{"+3h", "-3h", "+50y", "-50y"}[l.random.Intn(4)]
	story.say("%s, %s", r.name, off)
	before, err := r.status()
	if err != nil {
		return err
	}
	id, err := strconv.ParseUint(before.MemberID, 16, 64)
	if err != nil {
		return err
	}
	r.kill()
	r.env = []string{"LD_PRELOAD=" + libfaketime(), "FAKETIME=" + off, "FAKETIME_DONT_FAKE_MONOTONIC=1", "DONT_FAKE_MONOTONIC=1"}
	if err := l.restart(r); err != nil {
		return err
	}
	way := map[byte]string{'+': "ahead)", '-': "behind)"}[off[0]]
	for _, other := range order[1:] {
		err := eventually(func() error {
			s, err := other.status()
			if err != nil {
				return err
			}
			for _, alarm := range s.Alarms {
				if strings.HasPrefix(alarm, fmt.Sprintf("memberID:%d alarm:CLOCK ", id)) && strings.HasSuffix(alarm, way) {
					return nil
				}
			}
			return fmt.Errorf("%s names %s in no alarm: %v", other.name, r.name, s.Alarms)
		})
		if err != nil {
			return err
		}
	}
	l.wait(hold)
	r.kill()
	r.env = nil
	return l.restart(r)
}
