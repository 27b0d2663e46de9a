package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// store is a whole etcd, as the clients of the scenario `single` can tell: every key, every lease, and the revision.
type store struct {
	rev    int64
	keys   [singleKeys]slot
	leases [singleClients]int64
}

// slot is a key; one that is not there has no mod revision.
type slot struct {
	value                       string
	create, mod, version, lease int64
}

func (s slot) shows(kv *KV) bool {
	if kv == nil || s.mod == 0 {
		return kv == nil && s.mod == 0
	}
	return *kv == KV{s.value, s.create, s.mod, s.version, s.lease}
}

// put writes a key at the next revision, which the caller counts.
func (s *store) put(key, value string, lease int64) {
	is := &s.keys[slotOf(key)]
	if is.mod == 0 {
		*is = slot{create: s.rev + 1}
	}
	is.value, is.mod, is.version, is.lease = value, s.rev+1, is.version+1, lease
}

func slotOf(key string) int { return int(key[len(key)-1] - '0') }

// apply does an operation, and says what it changed: whether a revision was taken, and whether the answer can be right.
func (s store) apply(op Op) (bool, store) {
	before := s
	switch op.Kind {
	case Put:
		if op.Lease != 0 && !slices.Contains(s.leases[:], op.Lease) {
			return false, before
		}
		s.put(op.Key, op.Value, op.Lease)
		s.rev++
	case Multi:
		s.put(op.Key, op.Value, 0)
		s.put(op.Others[0], op.Value, 0)
		s.keys[slotOf(op.Others[1])] = slot{}
		s.rev++
	case Delete:
		there := s.keys[slotOf(op.Key)].mod > 0
		if op.Outcome == OK && there != (op.Deleted == 1) {
			return false, before
		}
		if there {
			s.keys[slotOf(op.Key)] = slot{}
			s.rev++
		}
	case Swap:
		matches := s.keys[slotOf(op.Key)].mod == op.Compare
		if matches != op.Succeeded {
			return false, before
		}
		if !matches {
			return op.Header == s.rev && s.keys[slotOf(op.Key)].shows(op.Found), s
		}
		s.put(op.Key, op.Value, 0)
		s.rev++
	case Get:
		return op.Header == s.rev && s.keys[slotOf(op.Key)].shows(op.Found), s
	case Grant:
		s.leases[clientOf(op)] = op.Lease
	case Revoke:
		place := slices.Index(s.leases[:], op.Lease)
		if place < 0 {
			return op.Outcome != OK, s
		}
		s.leases[place] = 0
		for place := range s.keys {
			if s.keys[place].lease == op.Lease {
				s.keys[place], s.rev = slot{}, before.rev+1
			}
		}
	}
	return op.Outcome != OK || op.Header == s.rev, s
}

func clientOf(op Op) int { return int(op.Client[len(op.Client)-1] - '0') }

func etcdModel(first int64) porcupine.Model {
	return porcupine.Model{
		Init:              func() any { return store{rev: first} },
		Step:              func(state, input, _ any) (bool, any) { return state.(store).apply(input.(Op)) },
		DescribeOperation: func(input, _ any) string { return input.(Op).String() },
	}
}

// whole checks that all operations together are linearizable, with the revision of each answer, and that no revision was
// left out or used twice. What a write became that was not answered is read from the watch: each value is written once.
func (l *Lab) whole(ops []Op, watch *Watch, first int64) {
	written := map[string]Event{}
	var holes []string
	next := first + 1
	for _, s := range watch.segments {
		for _, e := range s.Events {
			if !e.Deleted {
				written[e.Key+"="+e.KV.Value] = e
			}
			if e.Rev > next {
				holes = append(holes, fmt.Sprintf("%d to %d were told to nobody, before %v", next, e.Rev-1, e))
			}
			next = max(next, e.Rev+1)
		}
	}
	l.report.check(len(holes) == 0, "the watch tells every revision", fmt.Sprintf("%d", next-first-1), limit(holes, 8)...)
	history, unknown := wholeHistory(ops, written)
	model := etcdModel(first)
	result, info := porcupine.CheckOperationsVerbose(model, history, 60*time.Second)
	var excerpt []string
	if result == porcupine.Illegal {
		excerpt = stuck(info, history)
	}
	l.report.check(result == porcupine.Ok, "all operations together are linearizable, with their revisions",
		fmt.Sprintf("%d operations, %d with unknown outcome, %s", len(history), unknown, result), excerpt...)
}

// wholeHistory are the operations that the model knows.
func wholeHistory(ops []Op, written map[string]Event) (history []porcupine.Operation, unknown int) {
	for _, op := range ops {
		end := op.Return
		if op.Outcome == Failed || op.aside() || op.Kind == GetAt || op.Kind == GetStale {
			continue
		}
		if op.Outcome == Unknown {
			end = 1 << 61
			unknown++
			switch op.Kind {
			case Put, Swap, Multi:
				e, done := written[op.Key+"="+op.Value]
				if !done {
					continue
				}
				op.Outcome, op.Header, op.Succeeded = OK, e.Rev, true
			case Delete, Revoke: // The checker finds when, or never: at the end they disturb nobody.
			default:
				continue
			}
		}
		history = append(history, porcupine.Operation{ClientId: clientOf(op), Input: op, Output: nil, Call: op.Call, Return: end})
	}
	return history, unknown
}

// stuck tells how far the checker came, and what would have had to come next.
func stuck(info porcupine.LinearizationInfo, history []porcupine.Operation) []string {
	var longest []int
	for _, partial := range info.PartialLinearizations()[0] {
		if len(partial) > len(longest) {
			longest = partial
		}
	}
	done := map[int]bool{}
	var lines []string
	for n, id := range longest {
		done[id] = true
		if n >= len(longest)-5 {
			lines = append(lines, "        "+history[id].Input.(Op).String())
		}
	}
	var waiting []Op
	for id, op := range history {
		if !done[id] {
			waiting = append(waiting, op.Input.(Op))
		}
	}
	slices.SortFunc(waiting, func(a, b Op) int { return int(a.Call - b.Call) })
	for _, op := range waiting[:min(8, len(waiting))] {
		lines = append(lines, "no way: "+op.String())
	}
	return lines
}

func sorted(words []string) []string {
	slices.Sort(words)
	return words
}
