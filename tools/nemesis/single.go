package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Of the scenario `single`: the traffic of etcd's own robustness tests, at one replica of eddy or at one etcd.
const (
	singleClients = 8
	singleKeys    = 10
	singlePace    = 8 * time.Millisecond // mean pause of a client
	longTTL       = 7200                 // seconds; no lease runs out while the scenario lasts
	largeValue    = 32 << 10
	// How far behind its own last revision a client reads and compacts. Reads reach further back, so some are refused.
	readBack, compactBack = 1500, 1000
	killEvery             = 5 * time.Second
)

// single puts all kinds of operations on one replica, which is killed again and again. All of them together must be
// linearizable, with the revision of each reply, and the watch must tell each revision once.
func single(l *Lab, length time.Duration) error {
	if err := l.begin(1); err != nil {
		return err
	}
	r := l.replicas[0]
	watch, err := l.watch(r)
	if err != nil {
		return err
	}
	l.watches = append(l.watches, watch)
	first := watch.segments[0].From
	if len(watch.segments[0].Keys) > 0 {
		return fmt.Errorf("it is not empty")
	}
	for place := range singleClients {
		etcd, err := l.connect(r)
		if err != nil {
			return err
		}
		c := &Client{lab: l, replica: r, name: fmt.Sprintf("client%d", place), etcd: etcd, seen: map[string]int64{},
			random: rand.New(rand.NewSource(l.seed*1000 + int64(place)))}
		l.clients.Go(func() {
			defer etcd.Close()
			t := &traffic{Client: c, place: place}
			for !l.stopping() {
				if r.serves() {
					t.turn()
				}
				l.wait(time.Duration(c.random.Int63n(int64(2 * singlePace))))
			}
		})
	}
	kills := 0
	for end := time.Now().Add(length); time.Now().Before(end) && !stopped(); kills++ {
		l.wait(min(killEvery, time.Until(end)))
		r.kill()
		if err := l.restart(r); err != nil {
			return err
		}
	}
	l.wait(time.Second)
	close(l.stop)
	l.clients.Wait()
	if stopped() {
		return nil
	}
	l.report.note("%d kills", kills)
	if err := watch.finish(); err != nil {
		l.report.check(false, r.name+": its watch tells everything", err.Error())
		return nil
	}
	ops := l.history.all()
	l.judgeSingle(ops, watch, first)
	return l.watchAgain(watch, ops)
}

// traffic is a client of the scenario, and the lease that it holds.
type traffic struct {
	*Client
	place int
	lease int64
}

func (t *traffic) key() string { return fmt.Sprintf("single/%d", t.random.Intn(singleKeys)) }

// turn does one operation at random.
func (t *traffic) turn() {
	op := Op{Key: t.key()}
	switch dice := t.random.Intn(1000); {
	case dice < 280:
		op.Kind, op.Value = Put, t.value(op.Key)
	case dice < 310:
		op.Kind, op.Value = Put, t.value(op.Key)
		op.Value += strings.Repeat("x", largeValue)
	case dice < 400:
		op.Kind = Delete
	case dice < 550:
		op.Kind = Get
	case dice < 600:
		op.Kind = GetStale
	case dice < 660 && t.last > readBack:
		op.Kind, op.Compare = GetAt, t.last-t.random.Int63n(readBack)
	case dice < 770:
		op.Kind, op.Value, op.Compare = Swap, t.value(op.Key), t.seen[op.Key]
	case dice < 820:
		op.Kind, op.Value, op.Others = Multi, t.value(op.Key), []string{t.other(op.Key), ""}
		op.Others[1] = t.other(op.Key, op.Others[0])
	case dice < 995 && t.lease == 0:
		op = Op{Kind: Grant}
	case dice < 910:
		op.Kind, op.Value, op.Lease = Put, t.value(op.Key), t.lease
	case dice < 990:
		op = Op{Kind: Revoke, Lease: t.lease}
		t.lease = 0 // Also when nobody knows whether it is gone.
	case dice < 997 && t.last > compactBack:
		op = Op{Kind: Compact, Compare: t.last - compactBack}
	case dice >= 998:
		op = Op{Kind: Defragment}
	default:
		op.Kind = Get
	}
	if op = t.do(op); op.Kind == Grant && op.Outcome == OK {
		t.lease = op.Lease
	}
}

// other is a key that is none of these.
func (t *traffic) other(keys ...string) string {
	for {
		key, taken := t.key(), false
		for _, is := range keys {
			taken = taken || is == key
		}
		if !taken {
			return key
		}
	}
}

// judgeSingle checks everything that the clients were told.
func (l *Lab) judgeSingle(ops []Op, watch *Watch, first int64) {
	compactions := compacted(ops)
	var rest, wrong []string
	var judged []Op
	counts := map[Kind]int{}
	for _, op := range ops {
		counts[op.Kind]++
		refused := strings.Contains(op.Err, rpctypes.ErrCompacted.Error())
		switch {
		case op.Kind == GetAt && op.Outcome == OK && op.Compare < compactions.answered(op.Call):
			wrong = append(wrong, "read below a compaction: "+op.String())
		case refused && (op.Kind != GetAt && op.Kind != Compact || op.Compare > compactions.asked(op.Return)):
			wrong = append(wrong, "refused above all compactions: "+op.String())
		case !refused:
			judged = append(judged, op)
		}
	}
	for kind, count := range counts {
		rest = append(rest, fmt.Sprintf("%d %s", count, kind))
	}
	l.report.note("%s", strings.Join(sorted(rest), ", "))
	l.report.check(len(wrong) == 0, "what was compacted cannot be read, all else can", fmt.Sprintf("%d compactions", counts[Compact]), limit(wrong, 8)...)
	l.consistent(judged)
	l.whole(judged, watch, first)
}

// compactions are those that clients asked for.
type compactions []Op

func compacted(ops []Op) (all compactions) {
	for _, op := range ops {
		if op.Kind == Compact {
			all = append(all, op)
		}
	}
	return all
}

// asked is the newest revision at which a compaction was asked for before a moment.
func (c compactions) asked(before int64) (at int64) {
	for _, op := range c {
		if op.Call < before {
			at = max(at, op.Compare)
		}
	}
	return at
}

// answered is the newest revision of those that were answered before a moment.
func (c compactions) answered(before int64) (at int64) {
	for _, op := range c {
		if op.Outcome == OK && op.Return < before {
			at = max(at, op.Compare)
		}
	}
	return at
}

// watchAgain watches the whole history that is left once more. It must be what was told while it happened.
func (l *Lab) watchAgain(watch *Watch, ops []Op) error {
	segment := watch.segments[len(watch.segments)-1]
	from := max(segment.From, compacted(ops).asked(now())) + 1
	var expected []Event
	for _, e := range segment.Events {
		if e.Rev >= from {
			expected = append(expected, e)
		}
	}
	etcd, err := l.connect(watch.replica)
	if err != nil {
		return err
	}
	defer etcd.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	place := 0
	var wrong []string
	for answer := range etcd.Watch(ctx, "", clientv3.WithPrefix(), clientv3.WithRev(from)) {
		if err := answer.Err(); err != nil && !errors.Is(err, context.Canceled) {
			wrong = append(wrong, err.Error())
		}
		for _, e := range answer.Events {
			again := Event{Rev: e.Kv.ModRevision, Key: string(e.Kv.Key), Deleted: e.Type == clientv3.EventTypeDelete, KV: told(e.Kv)}
			if place >= len(expected) {
				wrong = append(wrong, "more than before: "+again.String())
			} else if is := expected[place]; is.Rev != again.Rev || is.Key != again.Key || is.Deleted != again.Deleted || is.KV != again.KV {
				wrong = append(wrong, "now "+again.String()+", and before "+is.String())
			}
			place++
		}
		if place >= len(expected) || len(wrong) > 0 {
			break
		}
	}
	if place < len(expected) {
		wrong = append(wrong, fmt.Sprintf("%d of %d events", place, len(expected)))
	}
	l.report.check(len(wrong) == 0, "a watch of the past tells the same again", fmt.Sprintf("%d events", place), limit(wrong, 8)...)
	return nil
}
