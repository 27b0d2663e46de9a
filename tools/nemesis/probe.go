package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Latencies are how long the puts of one client took, shortest first.
type Latencies []time.Duration

func (l Latencies) String() string {
	if len(l) == 0 {
		return "no puts"
	}
	at := func(part int) time.Duration { return l[len(l)*part/100].Round(10 * time.Microsecond) }
	return fmt.Sprintf("puts p50 %v, p99 %v, longest %v of %d", at(50), at(99), l[len(l)-1].Round(10*time.Microsecond), len(l))
}

// p99 is the time that one of a hundred puts takes longer than.
func (l Latencies) p99() time.Duration {
	if len(l) == 0 {
		return 0
	}
	return l[len(l)*99/100]
}

// probe has a client at each site put a small value, again and again with such a pause. What it returns ends that, and
// tells how long the puts took by replica.
func (l *Lab) probe(pause time.Duration) func() map[string]Latencies {
	var mu sync.Mutex
	var wait sync.WaitGroup
	took := map[string]Latencies{}
	end := make(chan struct{})
	failed := map[string]error{}
	for _, r := range l.replicas {
		wait.Go(func() {
			etcd, err := l.connect(r)
			if err != nil {
				return
			}
			defer etcd.Close()
			for {
				select {
				case <-end:
					return
				case <-time.After(pause):
				}
				ctx, cancel := context.WithTimeout(context.Background(), operationTimeout)
				begin := time.Now()
				_, err := etcd.Put(ctx, "probe/"+r.name, "x")
				cancel()
				mu.Lock()
				took[r.name] = append(took[r.name], time.Since(begin))
				if err != nil {
					failed[r.name] = err
				}
				mu.Unlock()
			}
		})
	}
	return func() map[string]Latencies {
		close(end)
		wait.Wait()
		for _, r := range l.replicas {
			l.report.check(failed[r.name] == nil, r.name+": serves its clients meanwhile", why(failed[r.name]))
			slices.Sort(took[r.name])
		}
		return took
	}
}
