package main

import (
	"context"
	"slices"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Lookout watches keys at one replica, and notes when it was told of each event.
type Lookout struct {
	replica *Replica
	etcd    *clientv3.Client
	cancel  context.CancelFunc
	mu      sync.Mutex
	seen    []Sight
}

// Sight is an event of a watch.
type Sight struct {
	key     string
	rev     int64
	deleted bool
	at      int64
}

func (l *Lab) lookout(r *Replica, prefix string) (*Lookout, error) {
	etcd, err := l.connect(r)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	o := &Lookout{replica: r, etcd: etcd, cancel: cancel}
	asking, done := context.WithTimeout(ctx, operationTimeout)
	defer done()
	answer, err := etcd.Get(asking, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		o.close()
		return nil, err
	}
	go func() {
		for from := answer.Header.Revision + 1; ctx.Err() == nil; {
			for told := range etcd.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(from)) {
				o.mu.Lock()
				for _, e := range told.Events {
					o.seen = append(o.seen, Sight{string(e.Kv.Key), e.Kv.ModRevision, e.Type == clientv3.EventTypeDelete, now()})
					from = e.Kv.ModRevision + 1
				}
				o.mu.Unlock()
			}
		}
	}()
	return o, nil
}

// of are the events of some keys.
func (o *Lookout) of(keys []string) []Sight {
	o.mu.Lock()
	defer o.mu.Unlock()
	var of []Sight
	for _, sight := range o.seen {
		if slices.Contains(keys, sight.key) {
			of = append(of, sight)
		}
	}
	return of
}

func (o *Lookout) close() {
	o.cancel()
	o.etcd.Close()
}
