package main

import (
	"strings"
	"testing"
)

// bench is a replica that did a few operations, and a watch that saw them: all checks pass. Each test spoils one thing.
type bench struct {
	lab   *Lab
	ops   []Op
	watch *Segment
	told  strings.Builder
}

const mine = "private/0/0/1"

func newBench() *bench {
	b := &bench{}
	b.lab = &Lab{report: &Report{to: &b.told}, replicas: []*Replica{{place: 0, name: "r0"}}}
	b.watch = &Segment{From: 1, To: 1, Keys: map[string][]Event{}}
	b.lab.watches = []*Watch{{lab: b.lab, replica: b.lab.replicas[0], segments: []*Segment{b.watch}}}
	first, second := KV{"a", 2, 2, 1, 0}, KV{"b", 2, 3, 2, 0}
	b.events(
		Event{Rev: 2, Key: mine, KV: first},
		Event{Rev: 3, Key: mine, KV: second, Prev: &first},
		Event{Rev: 4, Key: mine, Deleted: true, KV: KV{Mod: 4}, Prev: &second},
	)
	b.ops = []Op{
		{Kind: Put, Key: mine, Value: "a", Call: 10, Return: 11, Header: 2},
		{Kind: Get, Key: mine, Call: 20, Return: 21, Header: 2, Found: &first},
		{Kind: Swap, Key: mine, Value: "b", Compare: 2, Call: 30, Return: 31, Header: 3, Succeeded: true},
		{Kind: Swap, Key: mine, Value: "c", Compare: 2, Call: 40, Return: 41, Header: 3, Found: &second},
		{Kind: GetAt, Key: mine, Compare: 2, Call: 50, Return: 51, Header: 3, Found: &first},
		{Kind: Delete, Key: mine, Call: 60, Return: 61, Header: 4, Deleted: 1},
		{Kind: Get, Key: mine, Call: 70, Return: 71, Header: 4},
		{Kind: "lease", Key: "leased/0/1", Call: 80, Return: 81},
	}
	return b
}

func (b *bench) events(events ...Event) {
	for _, e := range events {
		b.watch.Keys[e.Key] = append(b.watch.Keys[e.Key], e)
		b.watch.Events = append(b.watch.Events, e)
		b.watch.To = e.Rev
	}
}

// fails are the checks that fail, by their names without the replica's.
func (b *bench) fails() map[string]bool {
	b.lab.consistent(append([]Op(nil), b.ops...))
	b.lab.linearizable(b.ops)
	fails := map[string]bool{}
	for _, name := range b.lab.report.failures {
		fails[strings.TrimPrefix(name, "r0: ")] = true
	}
	return fails
}

const linear = "its own keys are linearizable"

func TestAGoodHistoryPasses(t *testing.T) {
	b := newBench()
	if fails := b.fails(); len(fails) > 0 || b.lab.report.passed != 9 {
		t.Fatalf("%v\n%s", fails, b.told.String())
	}
}

func TestEachCheckFindsWhatItIsFor(t *testing.T) {
	other := KV{"x", 2, 2, 1, 0}
	for name, spoil := range map[string]struct {
		do    func(*bench)
		found string
	}{
		"a read of a value that was never written": {func(b *bench) { b.ops[1].Found = &other }, agree},
		"not linearizable either":                  {func(b *bench) { b.ops[1].Found = &other }, linear},
		"an acknowledged write is lost": {func(b *bench) {
			b.ops = append(b.ops, Op{Kind: Put, Key: mine, Value: "d", Call: 90, Return: 91, Header: 5})
		}, told_},
		"a lost write that a later read misses": {func(b *bench) {
			b.ops = append(b.ops, Op{Kind: Put, Key: mine, Value: "d", Call: 90, Return: 91, Header: 5}, Op{Kind: Get, Key: mine, Call: 95, Return: 96, Header: 5})
		}, linear},
		"a revision is given twice":      {func(b *bench) { b.ops = append(b.ops, b.ops[0]) }, unique},
		"a revision goes back":           {func(b *bench) { b.ops[6].Header = 3 }, ordered},
		"a stale read":                   {func(b *bench) { b.ops[6].Found = b.ops[3].Found }, linear},
		"a swap on an old revision":      {func(b *bench) { b.ops[2].Compare = 1 }, compared},
		"a swap that ought to succeed":   {func(b *bench) { b.ops[3].Compare = 3 }, compared},
		"the past changes":               {func(b *bench) { b.ops[4].Found = nil }, agree},
		"an error while it was alive":    {func(b *bench) { b.ops[0].Outcome, b.ops[0].Err = Unknown, "unavailable" }, errorsFree},
		"a lease promise broken":         {func(b *bench) { b.ops[7].Outcome, b.ops[7].Err = Unknown, "get: wrong: it is there" }, kept},
		"the watch ended":                {func(b *bench) { b.lab.watches[0].ends = []string{"compacted"} }, gapless},
		"a delete that deleted nothing":  {func(b *bench) { b.ops[5].Deleted = 0 }, linear},
		"a delete that the watch missed": {func(b *bench) { b.watch.Keys[mine] = b.watch.Keys[mine][:2] }, told_},
	} {
		b := newBench()
		spoil.do(b)
		if fails := b.fails(); !fails[spoil.found] {
			t.Errorf("%s: not found: %v\n%s", name, fails, b.told.String())
		}
	}
}

func TestAnUnknownOutcomeMayBeDoneLaterOrNever(t *testing.T) {
	b := newBench()
	late := KV{"late", 5, 5, 1, 0}
	b.lab.replicas[0].down = [][2]int64{{0, 100}}
	b.ops = append(b.ops,
		Op{Kind: Put, Key: mine, Value: "late", Call: 5, Return: 9, Outcome: Unknown},
		Op{Kind: Put, Key: mine, Value: "never", Call: 5, Return: 9, Outcome: Unknown},
		Op{Kind: Get, Key: mine, Call: 90, Return: 91, Header: 5, Found: &late})
	b.events(Event{Rev: 5, Key: mine, KV: late})
	if fails := b.fails(); len(fails) > 0 {
		t.Fatalf("%v\n%s", fails, b.told.String())
	}
}
