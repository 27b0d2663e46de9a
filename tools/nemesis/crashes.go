package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

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

// restoreOne puts an old copy of a disk back. Until it has met a peer it believes the copy, and nothing could tell its clients
// otherwise, so they wait.
func restoreOne(l *Lab, story *Story, hold time.Duration) error {
	r := l.chosen()[0]
	story.say("%s", r.name)
	copied := r.dir + ".copy"
	r.kill()
	if err := os.CopyFS(copied, os.DirFS(r.dir)); err != nil {
		return err
	}
	if err := l.restart(r); err != nil {
		return err
	}
	l.wait(hold)
	return l.quietly(func() error {
		before, err := r.status()
		if err != nil {
			return err
		}
		r.kill()
		if err := wipe(r.dir); err != nil {
			return err
		}
		if err := os.Rename(copied, r.dir); err != nil {
			return err
		}
		r.mu.Lock()
		r.epoch++
		r.mu.Unlock()
		if err := l.restart(r); err != nil {
			return err
		}
		if _, err := l.converged(); err != nil {
			return err
		}
		after, err := r.status()
		if err == nil && (after.Birth == before.Birth || after.Revision>>32 <= before.Revision>>32) {
			err = fmt.Errorf("%s: birth %s revision %d, and before the copy was put back birth %s revision %d: no new birth, or no leap",
				r.name, after.Birth, after.Revision, before.Birth, before.Revision)
		}
		return err
	})
}

// mixed does several things at random, some while others last.
func mixed(l *Lab, story *Story, hold time.Duration) error {
	paused := map[*Replica]bool{}
	defer func() {
		for r := range paused {
			r.signal(syscall.SIGCONT)
			r.markUp()
		}
	}()
	for range 4 + l.random.Intn(4) {
		order, reset := l.chosen(), l.random.Intn(2) == 0
		a, b := order[0], order[1]
		var err error
		switch l.random.Intn(6) {
		case 0:
			story.say("cut %s to %s", a.name, b.name)
			err = l.network.Cut(a.place, b.place, reset)
		case 1:
			story.say("cut %s off", a.name)
			err = l.severs(order[:1], order[1:], reset)
		case 2:
			story.say("heal")
			err = l.network.Heal()
		case 3:
			if paused[a] {
				story.say("continue %s", a.name)
				a.signal(syscall.SIGCONT)
				a.markUp()
				delete(paused, a)
			} else {
				story.say("pause %s", a.name)
				a.markDown()
				a.signal(syscall.SIGSTOP)
				paused[a] = true
			}
		default:
			if paused[a] {
				continue
			}
			story.say("kill %s", a.name)
			a.kill()
			err = l.restart(a)
		}
		if err != nil {
			return err
		}
		l.wait(hold / 4)
	}
	return nil
}
