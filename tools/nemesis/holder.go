package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Holder is a client that holds a lease at one replica, and what it was told.
type Holder struct {
	lab     *Lab
	replica *Replica
	guest   *Replica // where another key is put under the same lease
	fate    string
	key     string
	lookout *Lookout

	etcd    *clientv3.Client
	stop    chan struct{}
	once    sync.Once
	running sync.WaitGroup

	mu      sync.Mutex
	id      clientv3.LeaseID
	value   string
	acks    []Ack
	wrong   []string
	revoked bool
	guested bool
	count   int
}

// Ack is an acknowledged grant or keep-alive: the lease lives for its time from some moment between call and return.
type Ack struct {
	call, returned int64
	rev            int64
	granted        bool
}

// begin grants the lease, puts its keys and keeps it alive.
func (h *Holder) begin() error {
	var err error
	if h.etcd, err = h.lab.connect(h.replica); err != nil {
		return err
	}
	if err := h.grant(); err != nil {
		return err
	}
	if err := h.invite(); err != nil {
		return err
	}
	h.running.Go(func() {
		for {
			select {
			case <-h.stop:
				return
			case <-interrupted:
				return
			case <-time.After(leaseTTL / 8):
				h.keepAlive()
			}
		}
	})
	return nil
}

func (h *Holder) ended() bool {
	select {
	case <-h.stop:
		return true
	default:
		return false
	}
}

// end stops the client; the lease is left to itself.
func (h *Holder) end() {
	h.once.Do(func() {
		close(h.stop)
		h.running.Wait()
		h.etcd.Close()
	})
}

// grant takes a new lease and puts the key under it.
func (h *Holder) grant() error {
	ctx, cancel := context.WithTimeout(context.Background(), operationTimeout)
	defer cancel()
	call := now()
	granted, err := h.etcd.Grant(ctx, int64(leaseTTL/time.Second))
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.id, h.guested = granted.ID, false
	h.acks = append(h.acks, Ack{call, now(), granted.Revision, true})
	h.mu.Unlock()
	return h.put(ctx)
}

// put writes the key anew under the lease.
func (h *Holder) put(ctx context.Context) error {
	h.mu.Lock()
	h.count++
	value, id := fmt.Sprintf("%s %d", h.replica.name, h.count), h.id
	h.mu.Unlock()
	_, err := h.etcd.Put(ctx, h.key, value, clientv3.WithLease(id))
	if err == nil {
		h.mu.Lock()
		h.value = value
		h.mu.Unlock()
	}
	return err
}

// invite lets another site put a key under the lease, once it has heard of it.
func (h *Holder) invite() error {
	etcd, err := h.lab.connect(h.guest)
	if err != nil {
		return err
	}
	defer etcd.Close()
	err = eventually(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), operationTimeout)
		defer cancel()
		_, err := etcd.Put(ctx, h.guestKey(), "guest", clientv3.WithLease(h.id))
		return err
	})
	h.guested = err == nil
	return err
}

func (h *Holder) guestKey() string { return h.key + "/guest" }

func (h *Holder) keys() []string { return []string{h.key, h.guestKey()} }

// keepAlive renews once, and looks at the key. Sometimes it writes it anew.
func (h *Holder) keepAlive() {
	ctx, cancel := context.WithTimeout(context.Background(), leaseTTL/4)
	defer cancel()
	call := now()
	kept, err := h.etcd.KeepAliveOnce(ctx, h.id)
	if err != nil {
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			h.lost(call, "the lease was not found")
			h.grant()
		}
		return // Not answered: a pause, if it lasts.
	}
	ack := Ack{call, now(), kept.Revision, false}
	h.mu.Lock()
	chained := len(h.acks) > 0 && h.acks[len(h.acks)-1].chains(ack)
	h.acks = append(h.acks, ack)
	h.mu.Unlock()
	answer, err := h.etcd.Get(ctx, h.key)
	if err == nil && len(answer.Kvs) == 0 {
		if chained {
			h.lost(call, "its key was not there")
		}
		h.put(ctx)
	} else if err == nil && len(h.acks)%5 == 0 {
		h.put(ctx)
	}
}

// chains says whether the lease lived from one acknowledgement to the next without a pause.
func (a Ack) chains(next Ack) bool {
	return time.Duration(next.returned-a.call) < leaseTTL
}

// lost notes that the lease or its key was not there, if no pause explains it.
func (h *Holder) lost(at int64, what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if last := h.acks[len(h.acks)-1]; time.Duration(now()-last.call) < leaseTTL {
		h.wrong = append(h.wrong, fmt.Sprintf("%s, lease %x, %.3fs: %s, and it was kept alive at %.3fs", h.key, h.id, float64(at)/1e9,
			what, float64(last.call)/1e9))
	}
}

// revoke ends the client and its lease. When it is answered the keys are gone here.
func (h *Holder) revoke() {
	h.once.Do(func() {
		close(h.stop)
		h.running.Wait()
		defer h.etcd.Close()
		ctx, cancel := context.WithTimeout(context.Background(), operationTimeout)
		defer cancel()
		_, err := h.etcd.Revoke(ctx, h.id)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.revoked = true
		if err != nil {
			h.wrong = append(h.wrong, fmt.Sprintf("%s: revoke of %x: %v", h.key, h.id, err))
			return
		}
		for _, key := range h.keys() {
			if answer, err := h.etcd.Get(ctx, key); err != nil || len(answer.Kvs) > 0 {
				h.wrong = append(h.wrong, fmt.Sprintf("%s: there after the revoke of %x (%v)", key, h.id, err))
			}
		}
	})
}

func (h *Holder) acknowledged() []Ack {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.acks)
}

func (h *Holder) lastAck() int64 {
	acks := h.acknowledged()
	return acks[len(acks)-1].returned
}

// paused says whether no unbroken row of acknowledgements spans an interval, and the time before it in which others decide.
func (h *Holder) paused(from, to int64) bool {
	acks := h.acknowledged()
	for place, ack := range acks[:len(acks)-1] {
		near := acks[place+1].returned >= from && ack.call <= to
		if near && !ack.chains(acks[place+1]) {
			return true
		}
	}
	return acks[len(acks)-1].call < to-int64(leaseTTL)
}

// broken tells what went at its own site although a keep-alive had promised it more time.
func (h *Holder) broken() []string {
	seen := h.lookout.of(h.keys())
	h.mu.Lock()
	defer h.mu.Unlock()
	wrong := slices.Clone(h.wrong)
	for _, event := range seen {
		if !event.deleted || h.revoked {
			continue
		}
		place, found := 0, false
		for n, ack := range h.acks {
			if ack.rev < event.rev {
				place, found = n, true
			}
		}
		if !found {
			continue
		}
		ack := h.acks[place]
		early := time.Duration(event.at-ack.call) < leaseTTL-leaseRounding
		// Told late, but the next keep-alive was answered in time, so it cannot have run out between them.
		if place+1 < len(h.acks) {
			next := h.acks[place+1]
			early = early || !next.granted && ack.chains(next)
		}
		if early {
			wrong = append(wrong, fmt.Sprintf("%s, lease %x: deleted at %d, told at %.3fs, and kept alive at %.3fs", event.key, h.id, event.rev,
				float64(event.at)/1e9, float64(ack.call)/1e9))
		}
	}
	return wrong
}

// at reads the keys at a replica.
func (h *Holder) at(r *Replica, do func(key string, kv *KV) error) error {
	etcd, err := h.lab.connect(r)
	if err != nil {
		return err
	}
	defer etcd.Close()
	for _, key := range h.keys() {
		ctx, cancel := context.WithTimeout(context.Background(), operationTimeout)
		answer, err := etcd.Get(ctx, key)
		cancel()
		if err != nil {
			return err
		}
		if err := do(key, found(answer.Kvs)); err != nil {
			return fmt.Errorf("%s: %s, lease %x: %w", r.name, key, h.id, err)
		}
	}
	return nil
}

// until asks again until something holds or a moment has passed.
func until(deadline int64, holds func() error) error {
	for {
		asked := now()
		err := holds()
		if err == nil || asked > deadline || stopped() {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// goneAt waits until a replica shows no key of the lease, no longer than it may take.
func (h *Holder) goneAt(r *Replica, since int64) error {
	may := int64(leaseTTL + leaseGrace + leaseSlack)
	if h.fate == fateRevoked {
		may = int64(leaseSlack)
	}
	return until(max(h.lastAck(), since)+may, func() error {
		return h.at(r, func(_ string, kv *KV) error {
			if kv != nil {
				return fmt.Errorf("still there %.1f s after the last of keep-alive and heal", float64(now()-max(h.lastAck(), since))/1e9)
			}
			return nil
		})
	})
}

// shownAt waits until a replica shows the key as its client wrote it, and the guest's.
func (h *Holder) shownAt(r *Replica, since int64) error {
	// Its client writes on: what it wrote just before the look is on its way.
	return until(max(since+int64(leaseTTL+leaseGrace+leaseSlack), now()+int64(leaseSlack)), func() error {
		return h.at(r, func(key string, kv *KV) error {
			h.mu.Lock()
			defer h.mu.Unlock()
			switch {
			case key == h.guestKey() && !h.guested:
				return nil // Of a lease before this one.
			case kv == nil:
				return fmt.Errorf("not there %.1f s after", float64(now()-since)/1e9)
			case kv.Lease != int64(h.id):
				return fmt.Errorf("under lease %x", kv.Lease)
			case key == h.key && kv.Value != h.value:
				return fmt.Errorf("%q, and %q was written last", kv.Value, h.value)
			}
			return nil
		})
	})
}
