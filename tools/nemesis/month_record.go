package main

import (
	"fmt"
	"sort"
	"sync"
)

// Record is what clients did to each key last, by site. It knows nothing of eddy but that one of concurrent writes stays.
type Record struct {
	mu   sync.Mutex
	last map[string]map[*Replica]effect
}

// effect is the last thing that a site did to a key.
type effect struct {
	gone  bool
	value string
}

func newRecord() *Record { return &Record{last: map[string]map[*Replica]effect{}} }

func (r *Record) set(site *Replica, key string, last effect) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last[key] == nil {
		r.last[key] = map[*Replica]effect{}
	}
	r.last[key][site] = last
}

func (r *Record) note(site *Replica, key, value string) { r.set(site, key, effect{value: value}) }
func (r *Record) gone(site *Replica, key string)        { r.set(site, key, effect{gone: true}) }

// changedAt counts the keys that some sites changed, and the bytes of these keys and of their last values.
func (r *Record) changedAt(sites []*Replica) (keys int, bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, last := range r.last {
		most := -1
		for _, site := range sites {
			if is, did := last[site]; did {
				most = max(most, len(is.value))
			}
		}
		if most >= 0 {
			keys, bytes = keys+1, bytes+int64(len(key)+most)
		}
	}
	return keys, bytes
}

// against tells which keys are not as the last write of any site left them.
func (r *Record) against(held map[string]string) (keys int, wrong []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, last := range r.last {
		value, there := held[key]
		matches, may := false, ""
		for site, is := range last {
			matches = matches || is.gone && !there || !is.gone && there && is.value == value
			may += fmt.Sprintf(" %s: %.20q (gone %v)", site.name, is.value, is.gone)
		}
		if !matches {
			wrong = append(wrong, fmt.Sprintf("%s: %.20q (there %v), and the last were%s", key, value, there, may))
		}
	}
	sort.Strings(wrong)
	return len(r.last), wrong
}
