package main

import (
	"strings"
	"testing"
)

// lone is a history of one replica from the scenario `single`: all checks pass. Each test spoils one thing.
type lone struct {
	lab   *Lab
	ops   []Op
	watch *Watch
	told  strings.Builder
}

const a, b, c = "single/1", "single/2", "single/3"

func newLone() *lone {
	l := &lone{}
	l.lab = &Lab{report: &Report{to: &l.told}, replicas: []*Replica{{place: 0, name: "r0"}}}
	s := &Segment{From: 1, To: 1, Keys: map[string][]Event{}}
	l.watch = &Watch{lab: l.lab, replica: l.lab.replicas[0], segments: []*Segment{s}}
	l.lab.watches = []*Watch{l.watch}
	first, leased, swapped := KV{"1", 2, 2, 1, 0}, KV{"2", 3, 3, 1, 7}, KV{"4", 2, 5, 2, 0}
	l.events(
		Event{Rev: 2, Key: a, KV: first},
		Event{Rev: 3, Key: b, KV: leased},
		Event{Rev: 4, Key: c, KV: KV{"3", 4, 4, 1, 0}},
		Event{Rev: 5, Key: a, KV: swapped, Prev: &first},
		Event{Rev: 6, Key: b, Deleted: true, KV: KV{Mod: 6}, Prev: &leased},
		Event{Rev: 7, Key: a, Deleted: true, KV: KV{Mod: 7}, Prev: &swapped},
		Event{Rev: 8, Key: b, KV: KV{"5", 8, 8, 1, 0}},
		Event{Rev: 8, Key: c, KV: KV{"5", 4, 8, 2, 0}},
		Event{Rev: 9, Key: c, KV: KV{"6", 4, 9, 3, 0}},
	)
	l.ops = []Op{
		{Kind: Put, Key: a, Value: "1", Call: 10, Return: 11, Header: 2},
		{Kind: Grant, Lease: 7, Call: 15, Return: 16, Header: 2},
		{Kind: Put, Key: b, Value: "2", Lease: 7, Call: 20, Return: 21, Header: 3},
		{Kind: Get, Key: b, Call: 25, Return: 26, Header: 3, Found: &leased},
		{Kind: Put, Key: c, Value: "3", Call: 30, Return: 31, Header: 4},
		{Kind: Swap, Key: a, Value: "4", Compare: 2, Succeeded: true, Call: 40, Return: 41, Header: 5},
		{Kind: Revoke, Lease: 7, Call: 50, Return: 62, Header: 6},
		{Kind: Delete, Key: a, Deleted: 1, Call: 55, Return: 61, Header: 7},
		{Kind: Multi, Key: b, Value: "5", Others: []string{c, a}, Call: 70, Return: 71, Header: 8},
		{Kind: Compact, Compare: 3, Call: 75, Return: 76},
		{Kind: GetAt, Key: a, Compare: 2, Call: 78, Return: 79, Outcome: Failed, Err: "etcdserver: mvcc: required revision has been compacted"},
		{Kind: Put, Key: c, Value: "6", Call: 80, Return: 85, Outcome: Unknown, Err: "gone"},
		{Kind: Put, Key: a, Value: "7", Call: 80, Return: 85, Outcome: Unknown, Err: "gone"},
		{Kind: Get, Key: a, Call: 90, Return: 91, Header: 9},
	}
	for place := range l.ops {
		l.ops[place].Client = "client0"
	}
	l.lab.replicas[0].down = [][2]int64{{84, 86}}
	return l
}

func (l *lone) events(events ...Event) {
	s := l.watch.segments[0]
	for _, e := range events {
		s.Keys[e.Key] = append(s.Keys[e.Key], e)
		s.Events = append(s.Events, e)
		s.To = e.Rev
	}
}

func (l *lone) fails() map[string]bool {
	l.lab.judgeSingle(l.ops, l.watch, 1)
	fails := map[string]bool{}
	for _, name := range l.lab.report.failures {
		fails[strings.TrimPrefix(name, "r0: ")] = true
	}
	return fails
}

func TestAGoodHistoryOfOneReplicaPasses(t *testing.T) {
	l := newLone()
	if fails := l.fails(); len(fails) > 0 {
		t.Fatalf("%v\n%s", fails, l.told.String())
	}
}

func TestEachFaultOfRevisionsIsFound(t *testing.T) {
	const (
		linear    = "all operations together are linearizable, with their revisions"
		every     = "the watch tells every revision"
		compacted = "what was compacted cannot be read, all else can"
	)
	for name, spoil := range map[string]struct {
		do    func(*lone)
		found string
	}{
		// The delete came between, so its own place is taken as well.
		"a revoke answers with the revision of its group": {func(l *lone) { l.ops[6].Header = 7 }, linear},
		"a revoke answers late, told apart by the watch":  {func(l *lone) { l.ops[6].Header = 7 }, revoked_},
		"a grant answers with a revision to come":         {func(l *lone) { l.ops[1].Header = 3 }, linear},
		"a put on a lease that is gone":                   {func(l *lone) { l.ops[4].Lease = 8 }, linear},
		"a read shows another lease":                      {func(l *lone) { l.ops[3].Found = &KV{"2", 3, 3, 1, 0} }, linear},
		"a read of another version":                       {func(l *lone) { l.ops[3].Found = &KV{"2", 3, 3, 2, 7} }, linear},
		"a read at an older revision":                     {func(l *lone) { l.ops[13].Header = 7 }, linear},
		"a key that its revoke left":                      {func(l *lone) { l.ops[8].Kind, l.ops[8].Header = Get, 7; l.ops[8].Found = &KV{"2", 3, 3, 1, 7} }, linear},
		"a revision that nobody was told":                 {func(l *lone) { l.watch.segments[0].Events[3].Rev = 6 }, every},
		"a read below a compaction":                       {func(l *lone) { l.ops[10].Outcome, l.ops[10].Err = OK, "" }, compacted},
		"a read refused above it":                         {func(l *lone) { l.ops[10].Compare = 5 }, compacted},
		"an unanswered write that came twice": {func(l *lone) {
			l.ops[11].Return = 100
			l.ops = append(l.ops, Op{Kind: Get, Key: c, Client: "client0", Call: 110, Return: 111, Header: 10, Found: &KV{"6", 4, 10, 4, 0}})
		}, linear},
	} {
		l := newLone()
		spoil.do(l)
		if fails := l.fails(); !fails[spoil.found] {
			t.Errorf("%s: not found: %v\n%s", name, fails, l.told.String())
		}
	}
}
