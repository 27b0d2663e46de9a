package main

import (
	"context"
	"fmt"
	"math/rand"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// hotKey writes 10,000 times to one key while cut off, with nothing else going on. What was never offered to a peer is left
// out of what is sent afterwards; when the cut is silent, no more than a window is offered until it is noticed.
func hotKey(l *Lab, story *Story, _ time.Duration) error {
	const writes, size = 10000, 256
	order := l.chosen()
	r := order[0]
	mode := []string{"reset", "silent, noticed", "silent, not noticed yet"}[l.random.Intn(3)]
	if _, relays := l.network.(*Relays); !relays && mode == "reset" {
		mode = "silent, noticed"
	}
	return l.quietly(func() error {
		if _, err := l.converged(); err != nil {
			return err
		}
		if err := l.severs(order[:1], order[1:], mode == "reset"); err != nil {
			return err
		}
		if mode == "silent, noticed" {
			if err := r.unconnected(); err != nil {
				return err
			}
		}
		rss, others, begin, sent := r.rss(), order[1].rss(), now(), l.network.Sent(r.place)
		if err := l.overwrite(r, "hot", writes, size); err != nil {
			return fmt.Errorf("a write at the replica that is cut off: %w", err)
		}
		took := time.Duration(now() - begin)
		if mode == "silent, not noticed yet" {
			// A quick machine would be done before any replica could tell silence from a busy peer.
			time.Sleep(max(0, 500*time.Millisecond-took))
		}
		l.noteCut(r.place, begin, now())
		grown := r.rss() - rss
		if _, relays := l.network.(*Relays); !relays {
			sent = l.network.Sent(r.place) // Answers to clients are in that count, and it has answered all now.
		}
		if err := l.network.Heal(); err != nil {
			return err
		}
		healed := time.Now()
		if err := l.alike("hot"); err != nil {
			return err
		}
		caught := time.Since(healed).Round(time.Millisecond)
		sent = l.network.Sent(r.place) - sent
		story.say("%d writes of %d bytes at %s in %v; cut %s; caught up %v after healing with %d bytes; memory there %+d KiB, elsewhere %+d KiB",
			writes, size, r.name, took.Round(time.Millisecond), mode, caught, sent, grown>>10, (order[1].rss()-others)>>10)
		most := int64(len(order)-1) * (64 << 10)
		if mode == "silent, not noticed yet" {
			// What a peer was sent before it was missed: a window, and once more should the link be made anew.
			most = int64(len(order)-1) * (256 << 10)
		}
		if sent > most {
			return fmt.Errorf("catching up took %d bytes, more than %d", sent, most)
		}
		if grown > 64<<20 {
			return fmt.Errorf("memory grew by %d KiB", grown>>10)
		}
		return nil
	})
}

// overwrite puts many incompressible values to one key, as quickly as it goes.
func (l *Lab) overwrite(r *Replica, key string, writes, size int) error {
	const workers = 32
	etcd, err := l.connect(r)
	if err != nil {
		return err
	}
	defer etcd.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	seed := l.random.Int63()
	var wait sync.WaitGroup
	failures := make(chan error, workers)
	for worker := range workers {
		wait.Go(func() {
			random := rand.New(rand.NewSource(seed + int64(worker)))
			value := make([]byte, size)
			for n := worker; n < writes; n += workers {
				random.Read(value)
				if _, err := etcd.Put(ctx, key, string(value)); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	wait.Wait()
	close(failures)
	return <-failures
}

// alike waits until all show the same value of a key.
func (l *Lab) alike(key string) error {
	return eventually(func() error {
		var first *KV
		for place, r := range l.present() {
			etcd, err := l.connect(r)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(context.Background(), operationTimeout)
			answer, err := etcd.Get(ctx, key, clientv3.WithPrefix())
			cancel()
			etcd.Close()
			if err != nil {
				return err
			}
			kv := found(answer.Kvs)
			if place == 0 {
				first = kv
			}
			if kv == nil || kv.Value != first.Value {
				return fmt.Errorf("%s shows another value of %s", r.name, key)
			}
		}
		return nil
	})
}
