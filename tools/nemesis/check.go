package main

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// register is what a linearizable key can be. Mod 0 of a key that is there: written by who never heard at which revision.
type register struct {
	there bool
	value string
	mod   int64
}

var model = porcupine.Model{
	Init: func() any { return register{} },
	Step: func(state, input, output any) (bool, any) {
		s, op := state.(register), output.(Op)
		if op.Outcome == Unknown {
			switch op.Kind {
			case Put:
				return true, register{there: true, value: op.Value}
			case Delete:
				return true, register{}
			default:
				if s.mod == op.Compare || s.there && s.mod == 0 {
					return true, register{there: true, value: op.Value}
				}
				return true, s
			}
		}
		switch op.Kind {
		case Put:
			return op.Header > s.mod, register{true, op.Value, op.Header}
		case Delete:
			return (op.Deleted > 0) == s.there, register{}
		case Swap:
			if op.Succeeded {
				matches := s.mod == op.Compare || s.there && s.mod == 0 && op.Compare > 0
				return matches, register{true, op.Value, op.Header}
			}
			if !s.there && op.Compare == 0 || s.there && op.Found != nil && op.Found.Mod == op.Compare {
				return false, s
			}
		}
		if op.Found == nil {
			return !s.there, s
		}
		same := s.there && s.value == op.Found.Value && (s.mod == 0 || s.mod == op.Found.Mod)
		return same, register{true, op.Found.Value, op.Found.Mod}
	},
	DescribeOperation: func(_, output any) string { return output.(Op).String() },
}

// linearizable checks the keys that only one replica writes.
func (l *Lab) linearizable(ops []Op) {
	for _, r := range l.replicas {
		keys := map[string][]porcupine.Operation{}
		count, unknown := 0, 0
		for _, op := range ops {
			read := op.Kind == GetAt || op.Kind == GetStale || op.Kind == "lease"
			if op.Replica != r.place || !strings.HasPrefix(op.Key, "private/") || read || op.Outcome == Failed {
				continue
			}
			if l.wiped && strings.HasSuffix(op.Key, "/etcdctl") {
				continue // Not of an epoch.
			}
			end := op.Return
			if op.Outcome == Unknown {
				end = 1 << 61
				unknown++
			}
			count++
			keys[op.Key] = append(keys[op.Key], porcupine.Operation{Input: op, Output: op, Call: op.Call, Return: end})
		}
		var bad []string
		for key, history := range keys {
			switch porcupine.CheckOperationsTimeout(model, history, 30*time.Second) {
			case porcupine.Illegal:
				bad = append(bad, key+" is not linearizable; the shortest prefix that is not ends:")
				bad = append(bad, shortest(history)...)
			case porcupine.Unknown:
				bad = append(bad, key+": not decided in 30 s")
			}
		}
		what := fmt.Sprintf("%s: its own keys are linearizable", r.name)
		l.report.check(len(bad) == 0, what, fmt.Sprintf("%d operations, %d with unknown outcome, %d keys", count, unknown, len(keys)), limit(bad, 24)...)
	}
}

// shortest finds the shortest prefix by time of call that is not linearizable, and tells its end.
func shortest(history []porcupine.Operation) []string {
	sort.Slice(history, func(i, j int) bool { return history[i].Call < history[j].Call })
	illegal := func(n int) bool {
		return porcupine.CheckOperationsTimeout(model, history[:n], 5*time.Second) == porcupine.Illegal
	}
	n := sort.Search(len(history), func(n int) bool { return n > 0 && illegal(n) })
	var lines []string
	for _, op := range history[max(0, n-10):min(n, len(history))] {
		lines = append(lines, op.Output.(Op).String())
	}
	return lines
}

// The checks of what a replica told its clients, each with what was wrong first.
type findings struct {
	counts map[string]int
	wrong  map[string][]string
}

func (f *findings) find(what string, ok bool, excerpt func() []string) {
	f.counts[what]++
	if !ok {
		if len(f.wrong[what]) < 6 {
			f.wrong[what] = append(f.wrong[what], excerpt()...)
		} else {
			f.wrong[what] = append(f.wrong[what], "")
		}
	}
}

const (
	ordered    = "revisions follow the order of operations"
	unique     = "no revision is given twice"
	told_      = "the watch tells every acknowledged write"
	agree      = "reads agree with the watch"
	compared   = "compare-and-swaps agree with the watch"
	gapless    = "the watch has no gap, and is in order"
	kept       = "leases do what they promise"
	revoked_   = "a revoke answers with the revision of its deletes"
	errorsFree = "clients were served whenever it was alive"
)

// consistent checks what etcd promises of one replica against its watch.
func (l *Lab) consistent(ops []Op) {
	for _, w := range l.watches {
		r := w.replica
		f := findings{map[string]int{}, map[string][]string{}}
		var mine []Op
		for _, op := range ops {
			if op.Replica == r.place {
				mine = append(mine, op)
			}
		}
		f.order(mine)
		claimed := w.claimed(mine)
		skipped := 0
		for _, op := range mine {
			if op.Outcome != OK {
				expected := r.wasDown(op.Call, op.Return) || (op.Kind == GetAt && l.wiped) || (op.Outcome == Failed && r.isGone())
				if op.Kind == "lease" {
					f.find(kept, !strings.Contains(op.Err, "wrong: "), func() []string { return []string{op.String()} })
				}
				f.find(errorsFree, expected || r.isGone(), func() []string { return []string{op.String()} })
				continue
			}
			f.find(errorsFree, true, nil)
			if op.Kind == "lease" {
				f.find(kept, true, nil)
			}
			if op.aside() || op.Kind == Grant {
				continue
			}
			at := op.Header
			if op.Kind == GetAt {
				at = op.Compare
			}
			s := w.covering(at)
			if s == nil || at == s.From && op.writes() {
				skipped++
				continue
			}
			f.against(s, op, at, claimed)
		}
		f.find(gapless, true, nil)
		for place, s := range w.segments {
			f.counts[gapless] += len(s.Events)
			if len(s.Wrong) > 0 {
				f.wrong[gapless] = append(f.wrong[gapless], s.Wrong...)
			}
			if place > 0 && s.From < w.segments[place-1].To {
				f.wrong[gapless] = append(f.wrong[gapless], fmt.Sprintf("listed again at %d, after the watch had told of %d", s.From, w.segments[place-1].To))
			}
		}
		if len(w.ends) > 0 && !l.wiped && !r.isGone() {
			f.wrong[gapless] = append(f.wrong[gapless], w.ends...)
		}
		if skipped > 0 && !l.wiped && !r.isGone() {
			f.find(agree, false, func() []string {
				return []string{fmt.Sprintf("%d operations are of revisions that no watch covers", skipped)}
			})
		}
		for _, what := range []string{errorsFree, ordered, unique, gapless, told_, agree, compared, revoked_, kept} {
			if f.counts[what] == 0 && len(f.wrong[what]) == 0 && (what == revoked_ || what == kept) {
				continue // Nobody did that.
			}
			detail := fmt.Sprintf("%d", f.counts[what])
			if wrong := len(f.wrong[what]); wrong > 0 {
				detail += fmt.Sprintf(", %d lines of findings", wrong)
			}
			l.report.check(len(f.wrong[what]) == 0, r.name+": "+what, detail, limit(f.wrong[what], 14)...)
		}
	}
}

// unsureFor is how long an operation that was not answered may still take.
const unsureFor = int64(5 * time.Second)

// claimed are the revisions of writes that tell theirs, and of deletes that may be of an operation that was not answered.
func (w *Watch) claimed(ops []Op) map[int64]bool {
	claimed := map[int64]bool{}
	for _, op := range ops {
		if op.Outcome == OK && op.writes() {
			claimed[op.Header] = true
		}
		if op.Outcome != Unknown {
			continue
		}
		// It came between what had ended before it, and what began long after it.
		from, to := int64(0), int64(1<<62)
		for _, other := range ops {
			if other.Outcome == OK && other.Return < op.Call {
				from = max(from, other.Header)
			}
			if other.Outcome == OK && other.Call > op.Return+unsureFor && !other.aside() {
				to = min(to, other.Header)
			}
		}
		for _, s := range w.segments {
			for _, e := range s.Events {
				if e.Deleted && e.Rev > from && e.Rev <= to && (e.Key == op.Key || slices.Contains(op.Others, e.Key)) {
					claimed[e.Rev] = true
				}
			}
		}
	}
	return claimed
}

func limit(lines []string, most int) []string {
	return lines[:min(most, len(lines))]
}

func (f *findings) order(ops []Op) {
	// Whoever began after another had ended sees no smaller revision.
	byEnd := append([]Op(nil), ops...)
	sort.Slice(byEnd, func(i, j int) bool { return byEnd[i].Return < byEnd[j].Return })
	sort.Slice(ops, func(i, j int) bool { return ops[i].Call < ops[j].Call })
	var newest Op
	next := 0
	owners := map[int64]Op{}
	for _, op := range ops {
		for ; next < len(byEnd) && byEnd[next].Return < op.Call; next++ {
			if byEnd[next].Outcome == OK && byEnd[next].Header > newest.Header {
				newest = byEnd[next]
			}
		}
		if op.Outcome != OK || op.aside() {
			continue
		}
		later := op.Header > newest.Header || op.Header == newest.Header && !op.writes()
		before := newest
		f.find(ordered, later, func() []string { return []string{before.String(), op.String()} })
		if op.writes() {
			owner, used := owners[op.Header]
			f.find(unique, !used, func() []string { return []string{owner.String(), op.String()} })
			owners[op.Header] = op
		}
	}
}

// against compares an operation with what the watch told, at the revision that it is of. Some revisions are known to be of
// another operation than a revoke.
func (f *findings) against(s *Segment, op Op, at int64, claimed map[int64]bool) {
	around := func(key string) []string {
		lines := []string{op.String()}
		if e := s.at(key, at-1); e != nil {
			lines = append(lines, "before: "+e.String())
		}
		if e := s.event(key, at); e != nil {
			lines = append(lines, "at it:  "+e.String())
		}
		return lines
	}
	excerpt := func() []string { return around(op.Key) }
	reads := func(what string) {
		e := s.at(op.Key, at)
		same := e == nil && op.Found == nil || e != nil && op.Found != nil && *op.Found == e.KV
		f.find(what, same, excerpt)
	}
	e := s.event(op.Key, at)
	switch op.Kind {
	case Revoke:
		for _, deleted := range s.leased(op.Lease) {
			if !claimed[deleted.Rev] {
				f.find(revoked_, deleted.Rev == at, func() []string { return []string{op.String(), deleted.String()} })
			}
		}
	case Put, Multi:
		f.find(told_, e != nil && !e.Deleted && e.KV.Value == op.Value, excerpt)
	case Delete:
		if op.Deleted > 0 {
			f.find(told_, e != nil && e.Deleted, excerpt)
		} else {
			f.find(agree, s.at(op.Key, at) == nil, excerpt)
		}
	case Swap:
		before := at
		if op.Succeeded {
			f.find(told_, e != nil && !e.Deleted && e.KV.Value == op.Value, excerpt)
			before--
		} else {
			reads(agree)
		}
		mod := int64(0)
		if last := s.at(op.Key, before); last != nil {
			mod = last.Rev
		}
		f.find(compared, (mod == op.Compare) == op.Succeeded, excerpt)
	default:
		reads(agree)
	}
}
