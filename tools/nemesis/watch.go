package main

import (
	"context"
	"fmt"
	"sort"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Event is what a watch saw of a key.
type Event struct {
	Rev     int64
	Key     string
	Deleted bool
	KV      KV
	Prev    *KV
}

func (e Event) String() string {
	if e.Deleted {
		return fmt.Sprintf("watch: %s deleted at %d", e.Key, e.Rev)
	}
	return fmt.Sprintf("watch: %s = %.40q create %d mod %d version %d", e.Key, e.KV.Value, e.KV.Create, e.KV.Mod, e.KV.Version)
}

// Segment is an uninterrupted piece of history: what was there at a revision, and all events after it.
type Segment struct {
	From, To int64 // To is the newest revision that it is known to cover
	Keys     map[string][]Event
	Events   []Event
	Wrong    []string
}

// Watch follows all keys of a replica with one watch of the official client, which goes on by itself after a lost
// connection.
type Watch struct {
	lab      *Lab
	replica  *Replica
	etcd     *clientv3.Client
	cancel   context.CancelFunc
	done     chan struct{}
	mu       sync.Mutex
	segments []*Segment
	ends     []string // why watches ended that were not to
}

func (l *Lab) watch(r *Replica) (*Watch, error) {
	etcd, err := l.connect(r)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &Watch{lab: l, replica: r, etcd: etcd, cancel: cancel, done: make(chan struct{})}
	if err := w.list(ctx); err != nil {
		cancel()
		return nil, err
	}
	go func() {
		defer close(w.done)
		for ctx.Err() == nil {
			why := w.follow(ctx)
			if ctx.Err() != nil || r.isGone() {
				return
			}
			w.mu.Lock()
			w.ends = append(w.ends, fmt.Sprintf("%.3fs: %v", float64(now())/1e9, why))
			w.mu.Unlock()
			for ctx.Err() == nil && w.list(ctx) != nil {
				time.Sleep(20 * time.Millisecond)
			}
		}
	}()
	return w, nil
}

// list begins a segment.
func (w *Watch) list(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, operationTimeout)
	defer cancel()
	answer, err := w.etcd.Get(ctx, "", clientv3.WithPrefix())
	if err != nil {
		return err
	}
	segment := &Segment{From: answer.Header.Revision, To: answer.Header.Revision, Keys: map[string][]Event{}}
	for _, kv := range answer.Kvs {
		segment.Keys[string(kv.Key)] = []Event{{Rev: kv.ModRevision, Key: string(kv.Key), KV: told(kv)}}
	}
	w.mu.Lock()
	w.segments = append(w.segments, segment)
	w.mu.Unlock()
	return nil
}

func (w *Watch) follow(ctx context.Context) error {
	w.mu.Lock()
	segment := w.segments[len(w.segments)-1]
	w.mu.Unlock()
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := w.etcd.Watch(watching, "", clientv3.WithPrefix(), clientv3.WithRev(segment.From+1), clientv3.WithPrevKV())
	for answer := range answers {
		if err := answer.Err(); err != nil {
			return err
		}
		w.mu.Lock()
		segment.take(answer)
		w.mu.Unlock()
	}
	return fmt.Errorf("the watch ended without a reason")
}

// take appends the events of an answer, and notes whatever no etcd would say.
func (s *Segment) take(answer clientv3.WatchResponse) {
	wrong := func(format string, args ...any) {
		if len(s.Wrong) < 20 {
			s.Wrong = append(s.Wrong, fmt.Sprintf(format, args...))
		}
	}
	before := s.To
	if len(s.Events) > 0 {
		before = max(s.From, s.Events[len(s.Events)-1].Rev)
	}
	for place, e := range answer.Events {
		event := Event{Rev: e.Kv.ModRevision, Key: string(e.Kv.Key), Deleted: e.Type == clientv3.EventTypeDelete, KV: told(e.Kv)}
		if e.PrevKv != nil {
			prev := told(e.PrevKv)
			event.Prev = &prev
		}
		if event.Rev <= before {
			wrong("an answer has revision %d after one had %d: %v", event.Rev, before, event)
		}
		if place > 0 && event.Rev < answer.Events[place-1].Kv.ModRevision {
			wrong("not in order: %v", event)
		}
		last := s.at(event.Key, event.Rev-1)
		switch {
		case last == nil && event.Prev != nil:
			wrong("%v has a previous value that was never told: %+v", event, *event.Prev)
		case last != nil && event.Prev == nil:
			wrong("%v has no previous value, and %v came before", event, *last)
		case last != nil && *event.Prev != last.KV:
			wrong("%v follows %+v, and %v came last", event, *event.Prev, *last)
		case last == nil && event.Deleted:
			wrong("%v, which was not there", event)
		case !event.Deleted && last == nil && event.KV.Create != event.Rev:
			wrong("%v is new and was created before", event)
		case !event.Deleted && last != nil && event.KV.Create != last.KV.Create:
			wrong("%v has another create revision than %v", event, *last)
		}
		if known := s.Keys[event.Key]; len(known) > 0 && known[len(known)-1].Rev == event.Rev {
			wrong("twice in one revision: %v", event)
		}
		s.Keys[event.Key] = append(s.Keys[event.Key], event)
		s.Events = append(s.Events, event)
		s.To = max(s.To, event.Rev)
	}
}

// at is the newest event of a key up to a revision if the key was there then.
func (s *Segment) at(key string, rev int64) *Event {
	events := s.Keys[key]
	place := sort.Search(len(events), func(i int) bool { return events[i].Rev > rev })
	if place == 0 || events[place-1].Deleted {
		return nil
	}
	return &events[place-1]
}

// event is what happened to a key at exactly a revision.
func (s *Segment) event(key string, rev int64) *Event {
	events := s.Keys[key]
	place := sort.Search(len(events), func(i int) bool { return events[i].Rev >= rev })
	if place == len(events) || events[place].Rev != rev {
		return nil
	}
	return &events[place]
}

// leased are the deletes of keys that hung on a lease.
func (s *Segment) leased(lease int64) []Event {
	var deletes []Event
	for _, e := range s.Events {
		if e.Deleted && e.Prev != nil && e.Prev.Lease == lease {
			deletes = append(deletes, e)
		}
	}
	return deletes
}

// covering is the segment that a revision lies in, if one does.
func (w *Watch) covering(rev int64) *Segment {
	for place := len(w.segments) - 1; place >= 0; place-- {
		if s := w.segments[place]; rev >= s.From {
			if place == len(w.segments)-1 || rev <= s.To {
				return s
			}
			return nil
		}
	}
	return nil
}

// finish waits until the watch has told all that happened, and ends it.
func (w *Watch) finish() error {
	defer w.etcd.Close()
	defer w.cancel()
	if w.replica.isGone() {
		return nil
	}
	// A last event that can only come after all others.
	key := fmt.Sprintf("last/%d", w.replica.place)
	ctx, cancel := context.WithTimeout(context.Background(), operationTimeout)
	defer cancel()
	answer, err := w.etcd.Put(ctx, key, "x")
	if err != nil {
		return err
	}
	return eventually(func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if to := w.segments[len(w.segments)-1].To; to < answer.Header.Revision {
			return fmt.Errorf("the watch at %s stands at %d, and the replica at %d", w.replica.name, to, answer.Header.Revision)
		}
		return nil
	})
}
