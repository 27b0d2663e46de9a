package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// member adds a replica through one, lets it live (sometimes kills it while it joins), and removes it through another.
func member(l *Lab, story *Story, hold time.Duration) error {
	order := l.chosen()
	through, by := order[0], order[1]
	r, id, err := l.add(order, through)
	if err != nil {
		return err
	}
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
	if err := l.remove(by, id); err != nil {
		return err
	}
	story.say("removed through %s", by.name)
	return r.leaves()
}

// add makes a place for one more member and adds it through one of those that there are.
func (l *Lab) add(members []*Replica, through *Replica) (*Replica, uint64, error) {
	r, err := l.place("existing")
	if err != nil {
		return nil, 0, err
	}
	r.gone = true // Until it serves.
	for _, m := range members {
		r.list += fmt.Sprintf("%s=%s,", m.name, m.PeerURL)
	}
	r.list += fmt.Sprintf("%s=%s", r.name, r.PeerURL)
	id, err := l.addAgain(r, through)
	return r, id, err
}

func (l *Lab) addAgain(r, through *Replica) (uint64, error) {
	etcd, err := l.connect(through)
	if err != nil {
		return 0, err
	}
	defer etcd.Close()
	ctx, cancel := context.WithTimeout(context.Background(), operationTimeout)
	defer cancel()
	added, err := etcd.MemberAdd(ctx, []string{r.PeerURL})
	if err != nil {
		return 0, fmt.Errorf("adding %s through %s: %w", r.name, through.name, err)
	}
	return added.Member.ID, nil
}

func (l *Lab) remove(by *Replica, id uint64) error {
	etcd, err := l.connect(by)
	if err != nil {
		return err
	}
	defer etcd.Close()
	ctx, cancel := context.WithTimeout(context.Background(), operationTimeout)
	defer cancel()
	if _, err := etcd.MemberRemove(ctx, id); err != nil {
		return fmt.Errorf("removing a member through %s: %w", by.name, err)
	}
	return nil
}

// leaves waits until the process of a member that was removed ends by itself.
func (r *Replica) leaves() error {
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

// twice adds the same node in two partitions. It is one member afterwards; it is removed again.
func twice(l *Lab, story *Story, hold time.Duration) error {
	order := l.chosen()
	half := len(order) / 2
	if err := l.severs(order[:half], order[half:], true); err != nil {
		return err
	}
	r, id, err := l.add(order, order[0])
	if err != nil {
		return err
	}
	again, err := l.addAgain(r, order[half])
	if err != nil {
		return err
	}
	story.say("%s added through %s and through %s", r.name, order[0].name, order[half].name)
	if id != again {
		return fmt.Errorf("it is member %x and member %x", id, again)
	}
	l.wait(hold / 4)
	if err := l.network.Heal(); err != nil {
		return err
	}
	if err := l.listed(order, len(order)+1); err != nil {
		return err
	}
	if err := r.start(l.network); err != nil {
		return err
	}
	if err := r.ready(); err != nil {
		return err
	}
	if err := l.remove(order[half], id); err != nil {
		return err
	}
	return r.leaves()
}

// joined adds a member through one of those that are there, and waits until it is one of them.
func (l *Lab) joined(order []*Replica, through *Replica) (*Replica, uint64, error) {
	r, id, err := l.add(order, through)
	if err != nil {
		return nil, 0, err
	}
	return r, id, l.joins(r, order)
}

// mutual adds two members, cuts them off from each other, and lets each remove the other. Whatever comes of it, it is the
// same everywhere.
func mutual(l *Lab, story *Story, hold time.Duration) error {
	order := l.chosen()
	a, aID, err := l.joined(order, order[0])
	if err != nil {
		return err
	}
	b, bID, err := l.joined(append(order[:len(order):len(order)], a), order[1])
	if err != nil {
		return err
	}
	pair := []*Replica{a, b}
	if err := l.severs(pair, append(order, a, b), true); err != nil {
		return err
	}
	story.say("%s and %s remove each other", a.name, b.name)
	if err := l.remove(a, bID); err != nil {
		return err
	}
	if err := l.remove(b, aID); err != nil {
		return err
	}
	l.wait(hold / 4)
	if err := l.network.Heal(); err != nil {
		return err
	}
	// Each takes nothing more from whom it removed, but whoever meets a third one first is heard. Ask the others.
	if err := l.listed(order, 0); err != nil {
		return err
	}
	for place, id := range []uint64{aID, bID} {
		still, err := l.lists(order[0], id)
		if err != nil {
			return err
		}
		if still {
			story.say("%s stayed", pair[place].name)
			if err := l.remove(order[0], id); err != nil {
				return err
			}
		}
		if err := pair[place].leaves(); err != nil {
			return err
		}
	}
	return l.listed(order, len(order))
}

// deposed adds two members. One is cut off and removes the other; before it can tell, the others remove it. Nothing more is
// taken from it then, so the other stays.
func deposed(l *Lab, story *Story, hold time.Duration) error {
	order := l.chosen()
	a, aID, err := l.joined(order, order[0])
	if err != nil {
		return err
	}
	b, bID, err := l.joined(append(order[:len(order):len(order)], a), order[1])
	if err != nil {
		return err
	}
	others := append(order[:len(order):len(order)], b)
	if err := l.severs([]*Replica{a}, others, l.random.Intn(2) == 0); err != nil {
		return err
	}
	story.say("%s removes %s and is removed before it can tell", a.name, b.name)
	if err := l.remove(a, bID); err != nil {
		return err
	}
	if err := l.remove(order[0], aID); err != nil {
		return err
	}
	if err := l.listed(others, len(others)); err != nil {
		return err
	}
	l.wait(hold / 4)
	if err := l.network.Heal(); err != nil {
		return err
	}
	if err := a.leaves(); err != nil {
		return err
	}
	// It told nobody what it had done, not even when it was told itself.
	if err := l.listed(others, 0); err != nil {
		return err
	}
	if stays, err := l.lists(b, bID); err != nil || !stays {
		return fmt.Errorf("%s is a member no more (%v), by the word of one that was removed first", b.name, err)
	}
	if err := l.remove(order[0], bID); err != nil {
		return err
	}
	if err := b.leaves(); err != nil {
		return err
	}
	return l.listed(order, len(order))
}

// joins starts a member that was added, and waits until all know it.
func (l *Lab) joins(r *Replica, members []*Replica) error {
	if err := r.start(l.network); err != nil {
		return err
	}
	if err := r.ready(); err != nil {
		return err
	}
	return l.listed(append(members[:len(members):len(members)], r), len(members)+1)
}

func (l *Lab) members(r *Replica) ([]uint64, error) {
	etcd, err := l.connect(r)
	if err != nil {
		return nil, err
	}
	defer etcd.Close()
	ctx, cancel := context.WithTimeout(context.Background(), operationTimeout)
	defer cancel()
	list, err := etcd.MemberList(ctx)
	if err != nil {
		return nil, err
	}
	var ids []uint64
	for _, m := range list.Members {
		ids = append(ids, m.ID)
	}
	slices.Sort(ids)
	return ids, nil
}

func (l *Lab) lists(r *Replica, id uint64) (bool, error) {
	ids, err := l.members(r)
	return slices.Contains(ids, id), err
}

// listed waits until all list the same members, so many; with none, until all have listed the same for a while.
func (l *Lab) listed(all []*Replica, count int) error {
	same, seen := time.Now(), ""
	return eventually(func() error {
		var first []uint64
		for place, r := range all {
			ids, err := l.members(r)
			if err != nil {
				return err
			}
			if place == 0 {
				first = ids
			}
			if !slices.Equal(ids, first) || count > 0 && len(ids) != count {
				same = time.Now()
				return fmt.Errorf("%s lists %x, %s %x", r.name, ids, all[0].name, first)
			}
		}
		if text := fmt.Sprint(first); text != seen {
			same, seen = time.Now(), text
		}
		if count == 0 && time.Since(same) < 5*time.Second {
			return fmt.Errorf("not for long")
		}
		return nil
	})
}
