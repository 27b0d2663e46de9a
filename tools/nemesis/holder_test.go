package main

import (
	"strings"
	"testing"
	"time"
)

const second = int64(time.Second)

// held is a client that kept its lease alive from 0 s to 10 s and stopped; its key went at 14 s.
func held() *Holder {
	h := &Holder{fate: fateKept, key: "k", lookout: &Lookout{}}
	for n := range int64(11) {
		h.acks = append(h.acks, Ack{n * second, n*second + second/100, 10 + n, n == 0})
	}
	h.lookout.seen = []Sight{{"k", 5, false, 0}, {"k", 30, true, 14 * second}}
	return h
}

func TestALeaseThatRunsOutInTimeIsRight(t *testing.T) {
	if wrong := held().broken(); len(wrong) > 0 {
		t.Fatal(wrong)
	}
}

func TestWhatGoesBeforeItsTimeIsFound(t *testing.T) {
	for name, spoil := range map[string]func(*Holder){
		"early after the last keep-alive": func(h *Holder) { h.lookout.seen[1].at = 13 * second },
		"between keep-alives":             func(h *Holder) { h.lookout.seen[1].rev = 15; h.lookout.seen[1].at = 6 * second },
		"between them, and told late":     func(h *Holder) { h.lookout.seen[1].rev = 15; h.lookout.seen[1].at = 60 * second },
		"the other site's key":            func(h *Holder) { h.lookout.seen[1] = Sight{"k/guest", 15, true, 6 * second} },
	} {
		h := held()
		spoil(h)
		if len(h.broken()) == 0 {
			t.Errorf("%s: not found", name)
		}
	}
}

func TestAPauseOfAClientExplainsThatItsKeyWent(t *testing.T) {
	h := held()
	// Nothing was acknowledged from 3 s to 9 s.
	h.acks = append(h.acks[:4], h.acks[9:]...)
	h.lookout.seen[1] = Sight{"k", 15, true, 8 * second}
	if wrong := h.broken(); len(wrong) > 0 {
		t.Error(wrong)
	}
	if !h.paused(0, 8*second) || held().paused(0, 8*second) {
		t.Error("a pause is not told from none")
	}
}

func TestTheRecordKnowsWhatAKeyMayBe(t *testing.T) {
	here, there := &Replica{name: "r0"}, &Replica{name: "r1"}
	r := newRecord()
	r.note(here, "both", "x")
	r.note(there, "both", "y")
	r.note(here, "again", "old")
	r.note(here, "again", "new")
	r.note(here, "gone", "x")
	r.gone(here, "gone")
	good := map[string]string{"both": "y", "again": "new"}
	if _, wrong := r.against(good); len(wrong) > 0 {
		t.Fatal(wrong)
	}
	for key, value := range map[string]string{"both": "z", "again": "old", "gone": "x"} {
		bad := map[string]string{"both": "x", "again": "new", key: value}
		if _, wrong := r.against(bad); len(wrong) != 1 || !strings.HasPrefix(wrong[0], key) {
			t.Errorf("%s = %s: %v", key, value, wrong)
		}
	}
	if keys, bytes := r.changedAt([]*Replica{here}); keys != 3 || bytes != int64(len("both"+"x"+"again"+"new"+"gone")) {
		t.Error(keys, bytes)
	}
}
