package main

import (
	"context"
	"fmt"
	"math/rand"
	"strings"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Trouble is something that the nemesis does. It leaves all processes running; links are healed after it.
type Trouble struct {
	name string
	do   func(l *Lab, story *Story, hold time.Duration) error
}

// Story is what a trouble did, told with its check.
type Story struct{ words []string }

func (s *Story) say(format string, args ...any) {
	s.words = append(s.words, fmt.Sprintf(format, args...))
}

// troubles are all that can be chosen by name; `wipe` only then, or with -wipe.
var troubles = []Trouble{
	{"alone", alone}, {"halves", halves}, {"ring", ring}, {"oneway", oneWay}, {"apart", apart},
	{"kill", killOne}, {"killall", killAll}, {"pause", pause}, {"killcut", killWhileCut}, {"killsync", killDuringSync},
	{"member", member}, {"hotkey", hotKey}, {"wipe", wipeOne},
}

// chosen is a random order of n of the members.
func (l *Lab) chosen() []*Replica {
	members := l.present()
	l.random.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	return members
}

// severs cuts both directions between two groups.
func (l *Lab) severs(some, others []*Replica, reset bool) error {
	for _, a := range some {
		for _, b := range others {
			if a == b {
				continue
			}
			if err := l.network.Cut(a.place, b.place, reset); err != nil {
				return err
			}
			if err := l.network.Cut(b.place, a.place, reset); err != nil {
				return err
			}
		}
	}
	return nil
}

func how(reset bool) string {
	if reset {
		return "connections reset"
	}
	return "bytes held"
}

func alone(l *Lab, story *Story, hold time.Duration) error {
	order, reset := l.chosen(), l.random.Intn(2) == 0
	story.say("%s, %s", order[0].name, how(reset))
	return l.cutFor(hold, order[:1], func() error { return l.severs(order[:1], order[1:], reset) })
}

func halves(l *Lab, story *Story, hold time.Duration) error {
	order, reset := l.chosen(), l.random.Intn(2) == 0
	half := len(order) / 2
	story.say("%s and the others, %s", names(order[:half]), how(reset))
	return l.cutFor(hold, order, func() error { return l.severs(order[:half], order[half:], reset) })
}

// ring leaves to each replica two neighbours; three replicas are a line then.
func ring(l *Lab, story *Story, hold time.Duration) error {
	order, reset := l.chosen(), l.random.Intn(2) == 0
	story.say("%s, %s", names(order), how(reset))
	n := len(order)
	return l.cutFor(hold, nil, func() error {
		for i := range order {
			for j := i + 1; j < n; j++ {
				closing := i == 0 && j == n-1
				if j == i+1 || closing && n > 3 {
					continue
				}
				if err := l.severs(order[i:i+1], order[j:j+1], reset); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// oneWay loses what one replica sends to some others, not what they send to it.
func oneWay(l *Lab, story *Story, hold time.Duration) error {
	order := l.chosen()
	count := 1 + l.random.Intn(len(order)-1)
	story.say("from %s to %s", order[0].name, names(order[1:1+count]))
	return l.cutFor(hold, nil, func() error {
		for _, other := range order[1 : 1+count] {
			if err := l.network.Cut(order[0].place, other.place, false); err != nil {
				return err
			}
		}
		return nil
	})
}

func apart(l *Lab, story *Story, hold time.Duration) error {
	order, reset := l.chosen(), l.random.Intn(2) == 0
	story.say("%s from %s, %s", order[0].name, order[1].name, how(reset))
	return l.cutFor(hold, nil, func() error { return l.severs(order[:1], order[1:2], reset) })
}

// cutFor cuts, waits and heals. Those that see nobody of another group count as cut off.
func (l *Lab) cutFor(hold time.Duration, off []*Replica, cut func() error) error {
	if err := cut(); err != nil {
		return err
	}
	begin := now()
	l.wait(hold)
	for _, r := range off {
		l.noteCut(r.place, begin, now())
	}
	return l.network.Heal()
}

// wait sleeps; the load goes on meanwhile.
func (l *Lab) wait(long time.Duration) {
	select {
	case <-time.After(long):
	case <-interrupted:
	}
}

func (l *Lab) restart(r *Replica) error {
	if err := r.start(l.network); err != nil {
		return err
	}
	return r.ready()
}

func killOne(l *Lab, story *Story, hold time.Duration) error {
	r := l.chosen()[0]
	story.say("%s", r.name)
	r.kill()
	l.wait(hold / 2)
	return l.restart(r)
}

func killAll(l *Lab, story *Story, hold time.Duration) error {
	all := l.present()
	var ended sync.WaitGroup
	for _, r := range all {
		ended.Go(r.kill)
	}
	ended.Wait()
	for _, r := range all {
		if err := r.start(l.network); err != nil {
			return err
		}
	}
	for _, r := range all {
		if err := r.ready(); err != nil {
			return err
		}
	}
	l.wait(hold / 2)
	return nil
}

func pause(l *Lab, story *Story, hold time.Duration) error {
	order := l.chosen()
	some := order[:1+l.random.Intn(len(order)/2)]
	story.say("%s", names(some))
	for _, r := range some {
		r.markDown()
		r.signal(syscall.SIGSTOP)
	}
	l.wait(hold)
	for _, r := range some {
		r.signal(syscall.SIGCONT)
		r.markUp()
	}
	return nil
}

// killWhileCut kills a replica that nobody reaches, and starts it again while nobody does.
func killWhileCut(l *Lab, story *Story, hold time.Duration) error {
	order, reset := l.chosen(), l.random.Intn(2) == 0
	story.say("%s, %s", order[0].name, how(reset))
	return l.cutFor(hold/2, order[:1], func() error {
		if err := l.severs(order[:1], order[1:], reset); err != nil {
			return err
		}
		l.wait(hold / 2)
		order[0].kill()
		return l.restart(order[0])
	})
}

// killDuringSync cuts one off, heals, and kills it or another while they catch up.
func killDuringSync(l *Lab, story *Story, hold time.Duration) error {
	order := l.chosen()
	if err := alone(l, &Story{}, hold/2); err != nil {
		return err
	}
	for range 2 {
		if err := l.severs(order[:1], order[1:], true); err != nil {
			return err
		}
		l.burst(order[0], 300)
		victim := order[l.random.Intn(2)]
		after := time.Duration(l.random.Intn(150)) * time.Millisecond
		story.say("%s cut off, %s killed %v after", order[0].name, victim.name, after)
		if err := l.network.Heal(); err != nil {
			return err
		}
		l.wait(after)
		victim.kill()
		if err := l.restart(victim); err != nil {
			return err
		}
	}
	return nil
}

// burst writes many keys quickly, some of them large.
func (l *Lab) burst(r *Replica, count int) {
	etcd, err := l.connect(r)
	if err != nil {
		return
	}
	defer etcd.Close()
	ctx, cancel := context.WithTimeout(context.Background(), operationTimeout)
	defer cancel()
	for n := range count {
		etcd.Put(ctx, fmt.Sprintf("burst/%d", n), strings.Repeat(fmt.Sprintf("%s %d ", r.name, now()), 1+n%50))
	}
}

// member adds a replica through one, lets it live (sometimes kills it while it joins), and removes it through another.
func member(l *Lab, story *Story, hold time.Duration) error {
	order := l.chosen()
	through, by := order[0], order[1]
	r, err := l.place("existing")
	if err != nil {
		return err
	}
	r.gone = true // Until it serves.
	etcd, err := l.connect(through)
	if err != nil {
		return err
	}
	defer etcd.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	added, err := etcd.MemberAdd(ctx, []string{r.PeerURL})
	if err != nil {
		return fmt.Errorf("adding a member: %w", err)
	}
	for _, m := range order {
		r.list += fmt.Sprintf("%s=%s,", m.name, m.PeerURL)
	}
	r.list += fmt.Sprintf("%s=%s", r.name, r.PeerURL)
	story.say("%s added through %s", r.name, through.name)
	if err := r.start(l.network); err != nil {
		return err
	}
	if l.random.Intn(2) == 0 {
		after := time.Duration(20+l.random.Intn(200)) * time.Millisecond
		l.wait(after)
		r.kill()
		story.say("killed %v after its start", after)
		if err := r.start(l.network); err != nil {
			return err
		}
	}
	if err := r.ready(); err != nil {
		return err
	}
	r.mu.Lock()
	r.gone = false
	r.mu.Unlock()
	if err := l.populate(r); err != nil {
		return err
	}
	l.wait(hold)
	// What it has not sent when it is removed is not replicated, so let it send all.
	err = l.quietly(func() error {
		if err := l.watches[len(l.watches)-1].finish(); err != nil {
			return err
		}
		if _, err := l.converged(); err != nil {
			return fmt.Errorf("with %s: %w", r.name, err)
		}
		r.mu.Lock()
		r.gone = true
		r.mu.Unlock()
		return nil
	})
	if err != nil {
		return err
	}
	other, err := l.connect(by)
	if err != nil {
		return err
	}
	defer other.Close()
	if _, err := other.MemberRemove(ctx, added.Member.ID); err != nil {
		return fmt.Errorf("removing a member: %w", err)
	}
	story.say("removed through %s", by.name)
	select {
	case <-r.ended:
	case <-time.After(patience):
		return fmt.Errorf("%s was removed and does not end: %s", r.name, r.logTail())
	}
	if !r.cmd.ProcessState.Success() {
		return fmt.Errorf("%s was removed and ended with %v: %s", r.name, r.cmd.ProcessState, r.logTail())
	}
	return nil
}

// hotKey writes 10,000 times to one key while cut off, with nothing else going on.
func hotKey(l *Lab, story *Story, _ time.Duration) error {
	const writes, size, workers = 10000, 256, 32
	order := l.chosen()
	r := order[0]
	return l.quietly(func() error {
		if _, err := l.converged(); err != nil {
			return err
		}
		if err := l.severs(order[:1], order[1:], true); err != nil {
			return err
		}
		etcd, err := l.connect(r)
		if err != nil {
			return err
		}
		defer etcd.Close()
		rss, others := r.rss(), order[1].rss()
		seed, begin := l.random.Int63(), now()
		var wait sync.WaitGroup
		failures := make(chan error, writes)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		for worker := range workers {
			wait.Go(func() {
				random := rand.New(rand.NewSource(seed + int64(worker)))
				value := make([]byte, size)
				for n := worker; n < writes; n += workers {
					random.Read(value)
					if _, err := etcd.Put(ctx, "hot", string(value)); err != nil {
						failures <- err
					}
				}
			})
		}
		wait.Wait()
		close(failures)
		took := time.Duration(now() - begin)
		l.noteCut(r.place, begin, now())
		if err := <-failures; err != nil {
			return fmt.Errorf("a write at the replica that is cut off: %w", err)
		}
		grown, sent := r.rss()-rss, l.network.Sent(r.place)
		if err := l.network.Heal(); err != nil {
			return err
		}
		healed := time.Now()
		if err := l.alike("hot"); err != nil {
			return err
		}
		caught := time.Since(healed).Round(time.Millisecond)
		sent = l.network.Sent(r.place) - sent
		story.say("%d writes of %d bytes at %s in %v; caught up %v after healing with %d bytes; memory there %+d KiB, elsewhere %+d KiB",
			writes, size, r.name, took.Round(time.Millisecond), caught, sent, grown>>10, (order[1].rss()-others)>>10)
		if most := int64(len(order)-1) * (64 << 10); sent > most {
			return fmt.Errorf("catching up took %d bytes, more than %d, for one key", sent, most)
		}
		if grown > 32<<20 {
			return fmt.Errorf("memory grew by %d KiB", grown>>10)
		}
		return nil
	})
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

// wipeOne loses a disk. What no other replica had is gone with it, so its clients use other keys afterwards.
func wipeOne(l *Lab, story *Story, hold time.Duration) error {
	r := l.chosen()[0]
	story.say("%s", r.name)
	r.kill()
	if err := wipe(r.dir); err != nil {
		return err
	}
	l.wait(hold / 2)
	r.mu.Lock()
	r.epoch++
	r.mu.Unlock()
	return l.restart(r)
}

func names(replicas []*Replica) string {
	var names []string
	for _, r := range replicas {
		names = append(names, r.name)
	}
	return strings.Join(names, " ")
}
