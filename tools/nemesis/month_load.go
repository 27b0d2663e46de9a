package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// Workers of a site. Each key is always written by the same one, so the site's last write to it is known.
	lanes = 20
	// Of so many fields one is also changed by the other side; two are deleted, one of which is made again; one is put under
	// a lease. Half of the leases end.
	bothEvery, deletedEvery, leasedEvery = 100, 10, 25
	monthLeases                          = 20
	monthTTL                             = 3600 // seconds
)

// text is the nth value that a site gives a key. It can be made again, and is of no use to a compressor.
func (m *Month) text(site, key string, n, size int) string {
	sum := uint64(14695981039346656037)
	for _, b := range []byte(site + key) {
		sum = (sum ^ uint64(b)) * 1099511628211
	}
	random := rand.NewPCG(uint64(m.lab.seed)<<32|uint64(n), sum)
	text := fmt.Appendf(nil, "%s/%d/", site, n)
	for len(text) < size {
		word := random.Uint64()
		for range 8 {
			text = append(text, byte(word))
			word >>= 8
		}
	}
	return string(text[:size])
}

// drive does operations at a replica as quickly as it goes, those of one lane in order. The first error ends it.
func (l *Lab) drive(r *Replica, count int, do func(ctx context.Context, etcd *clientv3.Client, n int) error) error {
	etcd, err := l.connect(r)
	if err != nil {
		return err
	}
	defer etcd.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var wait sync.WaitGroup
	failures := make(chan error, lanes)
	for lane := range lanes {
		wait.Go(func() {
			for n := lane; n < count && ctx.Err() == nil && !stopped(); n += lanes {
				one, finish := context.WithTimeout(ctx, operationTimeout)
				err := do(one, etcd, n)
				finish()
				if err != nil && ctx.Err() == nil {
					failures <- fmt.Errorf("%s, operation %d: %w", r.name, n, err)
					cancel()
				}
			}
		})
	}
	wait.Wait()
	close(failures)
	return <-failures
}

func field(away bool, n int) string {
	if away {
		return fmt.Sprintf("field/there/%05d", n)
	}
	return fmt.Sprintf("field/here/%05d", n)
}

// fill writes each field once.
func (m *Month) fill() error {
	return m.lab.drive(m.healthy[0], 2*m.fields, func(ctx context.Context, etcd *clientv3.Client, n int) error {
		key := field(n%2 == 1, n/2)
		_, err := etcd.Put(ctx, key, m.text("before", key, n, 2*m.value))
		return err
	})
}

// absence is what happens while one is away. It ends with the first write that is refused.
func (m *Month) absence() error {
	begin := time.Now()
	var sites sync.WaitGroup
	failures := make(chan error, len(m.lab.replicas)+2)
	for _, r := range m.lab.replicas {
		sites.Go(func() {
			count := m.writes / len(m.healthy)
			if r == m.away {
				count = m.writes / 4
			}
			failures <- m.overwrites(r, count/m.round()*m.round())
		})
	}
	sites.Wait()
	m.gauges.tell(fmt.Sprintf("all overwritten, in %v", time.Since(begin).Round(time.Millisecond)))
	failures <- m.edits(m.away, true)
	failures <- m.edits(m.healthy[0], false)
	m.gauges.tell("all fields are changed")
	close(failures)
	for err := range failures {
		if err != nil {
			return err
		}
	}
	return nil
}

// round is after how many overwrites each hot key was written as often, by whole transactions of each lane.
func (m *Month) round() int {
	return m.hot * m.together
}

// overwrites writes the hot keys over and over, and compacts now and then. A transaction writes keys of one lane, each once.
func (m *Month) overwrites(r *Replica, count int) error {
	key := func(n int) string { return fmt.Sprintf("hot/%04d", n%m.hot) }
	quarter, step := count/4, max(1, m.compact/m.together)
	err := m.lab.drive(r, count/m.together, func(ctx context.Context, etcd *clientv3.Client, n int) error {
		var puts []clientv3.Op
		for at := range m.together {
			n := (n/lanes*m.together+at)*lanes + n%lanes
			puts = append(puts, clientv3.OpPut(key(n), m.text(r.name, key(n), n, m.value)))
		}
		answer, err := etcd.Txn(ctx).Then(puts...).Commit()
		if err == nil && n%step == step-1 {
			// Another compaction, by itself or of another lane, may have gone further.
			_, err = etcd.Compact(ctx, answer.Header.Revision)
			if err != nil && strings.Contains(err.Error(), "compacted") {
				err = nil
			}
		}
		if done := n * m.together; err == nil && r == m.healthy[0] && n > 0 && done/quarter > (done-m.together)/quarter {
			m.gauges.tell(fmt.Sprintf("about %d overwrites", done*len(m.healthy)))
		}
		return err
	})
	for n := count - m.hot; n < count && err == nil; n++ {
		m.record.note(r, key(n), m.text(r.name, key(n), n, m.value))
	}
	return err
}

// edits changes each field of one side and some of the other's, deletes some, makes some of these again, and puts some under
// leases.
func (m *Month) edits(r *Replica, away bool) error {
	var leases [monthLeases]clientv3.LeaseID
	if err := m.lab.drive(r, monthLeases, func(ctx context.Context, etcd *clientv3.Client, n int) error {
		granted, err := etcd.Grant(ctx, monthTTL)
		if err == nil {
			leases[n] = granted.ID
		}
		return err
	}); err != nil {
		return err
	}
	put := func(ctx context.Context, etcd *clientv3.Client, key string, n int, options ...clientv3.OpOption) error {
		value := m.text(r.name, key, n, 2*m.value)
		_, err := etcd.Put(ctx, key, value, options...)
		m.record.note(r, key, value)
		return err
	}
	if err := m.lab.drive(r, m.fields, func(ctx context.Context, etcd *clientv3.Client, n int) error {
		key := field(away, n)
		switch {
		case n%bothEvery == 0:
			if err := put(ctx, etcd, field(!away, n), n); err != nil {
				return err
			}
		case n%deletedEvery < 2:
			if _, err := etcd.Delete(ctx, key); err != nil || n%deletedEvery == 1 {
				m.record.gone(r, key)
				return err
			}
		case n%leasedEvery == 5:
			lease := n / leasedEvery % monthLeases
			err := put(ctx, etcd, key, n, clientv3.WithLease(leases[lease]))
			if lease < monthLeases/2 {
				m.record.gone(r, key)
			}
			return err
		}
		return put(ctx, etcd, key, n)
	}); err != nil {
		return err
	}
	return m.lab.drive(r, monthLeases/2, func(ctx context.Context, etcd *clientv3.Client, n int) error {
		_, err := etcd.Revoke(ctx, leases[n])
		return err
	})
}
