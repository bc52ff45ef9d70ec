/* The slot protocol of mambad: who may use a slot or a block, and when. `check.py` runs spin on it.

   Each rank has an engine thread, which decides, and a runner thread, which executes the steps that the
   engine launched, in order, at any later time. Clients submit and abort at any time. Of a state the model
   keeps whose it is and how many tokens it has consumed. A step that finds anything else in a slot, or that
   touches a slot or block which is not its request's, fails an assertion.

   here                                in engine/
   rank[k].free_slots, free_blocks     IdPool._free, as a set: bit i stands for id i
   rank[k].parked_slots, parked_blocks IdPool._quarantine: until the step in buffer set 0 or 1 has completed
   rank[k].state                       StatePool: what each slot holds
   rank[k].table                       BlockTable, the host's rows
   rank[k].step, turn                  InputBuffers: two sets, used in turn; what launched steps read
   rank[k].num_uncommitted             len(Engine._in_flight)
   rank[k].seen                        messages that its engine took from the inbox
   request[r].slot, blocks             CacheManager's Allocation
   request[r].key                      Request.key, as the place in the arrival order of the rank's live ones
   request[r].last_step                 Request.last_launched_step
   admit, grow, leave, settle, finish, preempt, make_room, schedule, commit, launch: methods of these names

   An engine works in atomic blocks between the points where another thread can see or change something. In
   each, what the environment chooses comes first (`chosen`); all that follows from it is one `d_step`.

   slot_holder and block_holder serve assertions only: who holds an id or, during quarantine, held it last. */

#ifndef RANKS
#define RANKS 2         /* data-parallel, in lockstep */
#endif
#ifndef SLOTS
#define SLOTS 2         /* a rank; also the rows of a padded step */
#endif
#ifndef BLOCKS
#define BLOCKS 3        /* a rank */
#endif
#ifndef REQUESTS
#define REQUESTS 3      /* in all */
#endif
#ifndef TOKENS
#define TOKENS 3        /* most tokens that a request consumes, the prompt being one; at most 3 */
#endif
#ifndef URGENT
#define URGENT 1        /* 1: a request may be more urgent than others */
#endif
#ifndef AGAIN
#define AGAIN 0         /* 1: whoever has ended may come again, without end; for one rank */
#endif
#define BLOCK_SIZE 2    /* tokens */

#define BIT(i)          (1 << (i))
#define ALL_SLOTS       (BIT(SLOTS + 1) - 2)
#define ALL_BLOCKS      (BIT(BLOCKS + 1) - 2)
#define BLOCKS_FOR(n)   (((n) + BLOCK_SIZE - 1) / BLOCK_SIZE)

/* The state of request r after n tokens; 0 is nobody's. */
#define STATE(r, n)     ((r) * 4 + (n))
#define REQUEST_OF(s)   ((s) / 4)
#define TOKENS_OF(s)    ((s) % 4)

#define NEW 0           /* not submitted, or not yet taken in */
#define WAITING 1
#define PREEMPTED 2
#define RUNNING 3
#define FINISHED 4

#define LEAVE 1         /* what the collective says */
#define STAY 2

typedef Request {
    byte status;
    byte home;              /* its rank */
    bool is_urgent;
    byte key;
    byte slot;              /* 0: holds none */
    byte blocks;
    byte num_launched;      /* tokens */
    byte num_computed;      /* tokens */
    bool last_step;         /* index of the last step that works on it, while one is not committed */
    bool is_yielding;
    byte swapped;           /* its state in host memory; 0: none */
};

/* A launched step. Row i goes on from the state `expected[i]` in `slot[i]`; 0 there: a padding row. */
typedef Step {
    bool is_computing;      /* launched and not completed */
    byte expected[SLOTS];
    byte slot[SLOTS];
    byte blocks[SLOTS];     /* the slot's row of the block table, as it was at the launch */
};

typedef Rank {
    byte free_slots;
    byte free_blocks;
    byte parked_slots[2];
    byte parked_blocks[2];
    byte slot_holder[SLOTS + 1];
    byte block_holder[BLOCKS + 1];
    byte state[SLOTS + 1];
    byte table[SLOTS + 1];
    Step step[2];
    byte num_uncommitted;
    byte seen;
    bool has_voted;
    bool has_work;
    byte outcome;           /* of the collective; 0: not known yet */
    bool is_idle;
};

Rank rank[RANKS];
Request request[REQUESTS + 1];
byte num_submitted;

/* Bit r: the environment chose this for request r. Bit 0: it chose that host memory is full. */
byte chosen;

/* Scratch inside d_steps. */
hidden byte n_;
hidden byte missing_;
hidden byte r_;
hidden byte id_;
hidden byte bits_;
hidden byte row_;
hidden byte set_;
hidden byte order_;
hidden byte who_;
hidden byte first_;
hidden byte last_;
hidden byte head_;
hidden byte num_rows_;
hidden byte ok_;

#define IS_LIVE(me, r)      (request[r].home == me && request[r].status >= WAITING && request[r].status <= RUNNING)
#define IS_RUNNING(me, r)   (request[r].home == me && request[r].status == RUNNING)
#define IS_QUEUED(me, r)    (IS_LIVE(me, r) && request[r].status != RUNNING)
#define IS_IN_FLIGHT(r)     (request[r].num_computed < request[r].num_launched)

/* ---- ledgers ---------------------------------------------------------------------------------------- */

/* Sets bits_ to the `count` lowest ids of a set; 0 when it has fewer. */
inline lowest(set, top, count) {
    bits_ = 0;
    n_ = 0;
    for (id_ : 1 .. top) {
        if
        :: n_ < (count) && (set & BIT(id_)) -> bits_ = bits_ | BIT(id_); n_++
        :: else
        fi
    }
    if
    :: n_ < (count) -> bits_ = 0
    :: else
    fi
}

/* Slot and blocks for `num_tokens` tokens, or nothing. Sets ok_. */
inline admit(me, r, num_tokens) {
    lowest(rank[me].free_slots, SLOTS, 1);
    ok_ = (bits_ != 0);
    if
    :: ok_ ->
        rank[me].free_slots = rank[me].free_slots & ~bits_;
        for (id_ : 1 .. SLOTS) {
            if
            :: bits_ == BIT(id_) -> request[r].slot = id_; rank[me].slot_holder[id_] = r
            :: else
            fi
        }
        grow(me, r, num_tokens);
        if
        :: !ok_ ->
            put_back_slot(me, request[r].slot);
            request[r].slot = 0
        :: else
        fi
    :: else
    fi
}

/* Blocks for `num_tokens` tokens in all, or none more. Sets ok_. */
inline grow(me, r, num_tokens) {
    n_ = 0;
    for (id_ : 1 .. BLOCKS) {
        if
        :: request[r].blocks & BIT(id_) -> n_++
        :: else
        fi
    }
    if
    :: n_ >= BLOCKS_FOR(num_tokens) -> ok_ = 1
    :: else ->
        missing_ = BLOCKS_FOR(num_tokens) - n_;
        lowest(rank[me].free_blocks, BLOCKS, missing_);
        ok_ = (bits_ != 0);
        rank[me].free_blocks = rank[me].free_blocks & ~bits_;
        request[r].blocks = request[r].blocks | bits_;
        rank[me].table[request[r].slot] = rank[me].table[request[r].slot] | bits_;
        for (id_ : 1 .. BLOCKS) {
            if
            :: bits_ & BIT(id_) -> rank[me].block_holder[id_] = r
            :: else
            fi
        }
    fi
}

/* What a free slot holds is nobody's: whoever reads it is wrong. */
inline put_back_slot(me, slot_id) {
    rank[me].free_slots = rank[me].free_slots | BIT(slot_id);
    rank[me].slot_holder[slot_id] = 0;
    rank[me].state[slot_id] = 0
}

inline put_back_blocks(me, ids) {
    rank[me].free_blocks = rank[me].free_blocks | (ids);
    for (id_ : 1 .. BLOCKS) {
        if
        :: (ids) & BIT(id_) -> rank[me].block_holder[id_] = 0
        :: else
        fi
    }
}

inline settle(me) {
    for (set_ : 0 .. 1) {
        if
        :: !rank[me].step[set_].is_computing ->
            for (id_ : 1 .. SLOTS) {
                if
                :: rank[me].parked_slots[set_] & BIT(id_) -> put_back_slot(me, id_)
                :: else
                fi
            }
            put_back_blocks(me, rank[me].parked_blocks[set_]);
            rank[me].parked_slots[set_] = 0;
            rank[me].parked_blocks[set_] = 0
        :: else
        fi
    }
}

/* Every id is in exactly one state. */
inline check_ledgers(me) {
    for (set_ : 0 .. 1) {
        n_ = (set_ == 0 -> rank[me].free_slots : rank[me].free_blocks);
        bits_ = n_;
        for (row_ : 0 .. 1) {
            id_ = (set_ == 0 -> rank[me].parked_slots[row_] : rank[me].parked_blocks[row_]);
            assert((bits_ & id_) == 0);
            bits_ = bits_ | id_
        }
        for (r_ : 1 .. REQUESTS) {
            if
            :: request[r_].home == me ->
                id_ = (set_ == 0 -> BIT(request[r_].slot) & ALL_SLOTS : request[r_].blocks);
                assert((bits_ & id_) == 0);
                bits_ = bits_ | id_
            :: else
            fi
        }
        assert(bits_ == (set_ == 0 -> ALL_SLOTS : ALL_BLOCKS))
    }
}

/* ---- the life of a request -------------------------------------------------------------------------- */

inline add(me, r) {
    n_ = 0;
    for (r_ : 1 .. REQUESTS) {
        n_ = n_ + IS_LIVE(me, r_)
    }
    request[r].key = n_ + 1;
    request[r].status = WAITING
}

/* Gives back all that a running request holds, at once or when the last launched step has completed. */
inline leave(me, r) {
    assert(request[r].slot != 0 && rank[me].slot_holder[request[r].slot] == r);
    rank[me].table[request[r].slot] = 0;
    if
    :: IS_IN_FLIGHT(r) && rank[me].step[request[r].last_step].is_computing ->
        set_ = request[r].last_step;
        rank[me].parked_slots[set_] = rank[me].parked_slots[set_] | BIT(request[r].slot);
        rank[me].parked_blocks[set_] = rank[me].parked_blocks[set_] | request[r].blocks
    :: else ->
        put_back_slot(me, request[r].slot);
        put_back_blocks(me, request[r].blocks)
    fi;
    request[r].slot = 0;
    request[r].blocks = 0;
    request[r].is_yielding = 0
}

inline finish(me, r) {
    if
    :: request[r].status == RUNNING -> leave(me, r)
    :: else
    fi;
    for (r_ : 1 .. REQUESTS) {
        if
        :: IS_LIVE(me, r_) && request[r_].key > request[r].key -> request[r_].key--
        :: else
        fi
    }
    request[r].status = FINISHED;
    request[r].home = 0;
    request[r].is_urgent = 0;
    request[r].key = 0;
    request[r].swapped = 0;
    request[r].num_launched = 0;
    request[r].num_computed = 0;
    request[r].last_step = 0
}

/* A copy between a slot and host memory happens at once, so no launched step may use slot or blocks. */
inline check_unused(me, r) {
    for (set_ : 0 .. 1) {
        for (row_ : 0 .. SLOTS - 1) {
            assert(!rank[me].step[set_].is_computing ||
                   rank[me].step[set_].slot[row_] != request[r].slot &&
                   (rank[me].step[set_].blocks[row_] & request[r].blocks) == 0)
        }
    }
}

inline preempt(me, r) {
    assert(!IS_IN_FLIGHT(r));
    if
    :: chosen & BIT(0) ->
        request[r].num_launched = 0;
        request[r].num_computed = 0
    :: else ->
        check_unused(me, r);
        assert(rank[me].state[request[r].slot] == STATE(r, request[r].num_computed));
        request[r].swapped = rank[me].state[request[r].slot]
    fi;
    leave(me, r);
    request[r].status = PREEMPTED
}

/* On what was reserved for it. */
inline start(me, r) {
    if
    :: request[r].swapped != 0 ->
        check_unused(me, r);
        rank[me].state[request[r].slot] = request[r].swapped;
        request[r].swapped = 0
    :: else
    fi;
    request[r].status = RUNNING
}

/* ---- a step ----------------------------------------------------------------------------------------- */

#define ORDER(r)    (request[r].key + (request[r].is_urgent -> 0 : REQUESTS))
#define PLACE(r)    (ORDER(r) + (request[r].is_urgent -> 0 : REQUESTS) + (request[r].status == WAITING -> REQUESTS : 0))

/* Sets first_ and last_ in the order of the running requests; 0 when none is running. */
inline find_running(me) {
    first_ = 0;
    last_ = 0;
    for (r_ : 1 .. REQUESTS) {
        if
        :: IS_RUNNING(me, r_) ->
            first_ = (first_ == 0 || ORDER(r_) < ORDER(first_) -> r_ : first_);
            last_ = (last_ == 0 || ORDER(r_) > ORDER(last_) -> r_ : last_)
        :: else
        fi
    }
}

/* Sets head_ to the head of the waiting queue, or 0. */
inline find_head(me) {
    head_ = 0;
    for (r_ : 1 .. REQUESTS) {
        if
        :: IS_QUEUED(me, r_) && (head_ == 0 || PLACE(r_) < PLACE(head_)) -> head_ = r_
        :: else
        fi
    }
}

/* Sets n_ to the number of running requests and ok_ to whether one of them is yielding. */
inline count_running(me) {
    n_ = 0;
    ok_ = 0;
    for (r_ : 1 .. REQUESTS) {
        if
        :: IS_RUNNING(me, r_) -> n_++; ok_ = ok_ || request[r_].is_yielding
        :: else
        fi
    }
}

inline preempt_yielding(me) {
    for (order_ : 1 .. REQUESTS) {
        if
        :: IS_RUNNING(me, order_) && request[order_].is_yielding && !IS_IN_FLIGHT(order_) -> preempt(me, order_)
        :: else
        fi
    }
}

inline yield_to_urgent(me) {
    find_running(me);
    find_head(me);
    count_running(me);
    if
    :: head_ != 0 && n_ > 0 && !ok_ && (n_ == SLOTS || rank[me].free_slots == 0) &&
       request[head_].is_urgent && !request[last_].is_urgent ->
        request[last_].is_yielding = 1;
        preempt_yielding(me)
    :: else
    fi
}

/* The last in order gives up its blocks. Sets ok_: whether they are free already. */
inline make_room(me, r) {
    find_running(me);
    count_running(me);
    if
    :: ok_ || rank[me].parked_blocks[0] || rank[me].parked_blocks[1] || last_ == first_ -> ok_ = 0
    :: else ->
        request[last_].is_yielding = 1;
        ok_ = !IS_IN_FLIGHT(last_) && last_ != r;
        if
        :: ok_ -> preempt(me, last_)
        :: else
        fi
    fi
}

/* Puts the next token of r into the step, if it may be launched and there is a block for it. */
inline schedule_running(me, r) {
    if
    :: request[r].num_launched < TOKENS && (!IS_IN_FLIGHT(r) || (chosen & BIT(r))) ->
        grow(me, r, request[r].num_launched + 1);
        if
        :: !ok_ ->
            make_room(me, r);
            if
            :: ok_ -> grow(me, r, request[r].num_launched + 1)
            :: else
            fi
        :: else
        fi;
        if
        :: ok_ ->
            rank[me].step[rank[me].num_uncommitted].expected[num_rows_] = STATE(r, request[r].num_launched);
            rank[me].step[rank[me].num_uncommitted].slot[num_rows_] = request[r].slot;
            request[r].num_launched++;
            request[r].last_step = rank[me].num_uncommitted;
            num_rows_++
        :: else
        fi
    :: else
    fi
}

inline admit_waiting(me) {
    count_running(me);
    find_head(me);
    ok_ = 1;
    do
    :: ok_ && n_ < SLOTS && head_ != 0 ->
        admit(me, head_, request[head_].num_launched + 1);
        if
        :: ok_ ->
            start(me, head_);
            schedule_running(me, head_);
            count_running(me);
            find_head(me);
            ok_ = 1
        :: else
        fi
    :: else -> break
    od
}

/* Collects num_rows_ rows in the buffer set whose turn it is. */
inline schedule(me) {
    settle(me);
    preempt_yielding(me);
    yield_to_urgent(me);
    num_rows_ = 0;
    for (order_ : 1 .. 2 * REQUESTS) {
        who_ = 0;
        for (r_ : 1 .. REQUESTS) {
            who_ = (IS_RUNNING(me, r_) && !request[r_].is_yielding && ORDER(r_) == order_ -> r_ : who_)
        }
        if
        :: who_ != 0 -> schedule_running(me, who_)
        :: else
        fi
    }
    admit_waiting(me)
}

/* All elements of the padded size are written. A dummy step is one of padding rows only. */
inline launch(me) {
    set_ = rank[me].num_uncommitted;
    assert(set_ < 2);
    for (row_ : 0 .. SLOTS - 1) {
        if
        :: row_ >= num_rows_ ->
            rank[me].step[set_].expected[row_] = 0;
            rank[me].step[set_].slot[row_] = 0
        :: else
        fi;
        rank[me].step[set_].blocks[row_] = rank[me].table[rank[me].step[set_].slot[row_]]
    }
    rank[me].step[set_].is_computing = 1;
    rank[me].num_uncommitted++
}

/* On the runner's thread. What a padding row computes is written, too. */
inline execute(me, set) {
    for (row_ : 0 .. SLOTS - 1) {
        id_ = rank[me].step[set].slot[row_];
        n_ = rank[me].step[set].expected[row_];
        bits_ = rank[me].step[set].blocks[row_];
        if
        :: n_ == 0 ->
            assert(bits_ == 0);
            rank[me].state[id_] = 0
        :: else ->
            assert(rank[me].slot_holder[id_] == REQUEST_OF(n_));
            assert(TOKENS_OF(n_) == 0 || rank[me].state[id_] == n_);
            rank[me].state[id_] = n_ + 1;
            assert(bits_ != 0);
            for (id_ : 1 .. BLOCKS) {
                assert(!(bits_ & BIT(id_)) || rank[me].block_holder[id_] == REQUEST_OF(n_))
            }
        fi;
        rank[me].step[set].slot[row_] = 0;
        rank[me].step[set].blocks[row_] = 0
    }
    rank[me].step[set].is_computing = 0
}

/* Takes in the oldest step. Rows of requests that have ended since are dropped. */
inline commit(me) {
    for (row_ : 0 .. SLOTS - 1) {
        n_ = rank[me].step[0].expected[row_];
        who_ = REQUEST_OF(n_);
        if
        :: who_ != 0 && request[who_].status != FINISHED ->
            assert(request[who_].status == RUNNING);
            request[who_].num_computed++;
            assert(request[who_].num_computed == TOKENS_OF(n_) + 1);
            if
            :: (chosen & BIT(who_)) || request[who_].num_computed == TOKENS -> finish(me, who_)
            :: else
            fi
        :: else
        fi
    }
    settle(me);
    forget_oldest(me)
}

/* The other launched step, if there is one, is the oldest now. */
inline forget_oldest(me) {
    rank[me].num_uncommitted--;
    for (row_ : 0 .. SLOTS - 1) {
        rank[me].step[0].expected[row_] = rank[me].step[1].expected[row_];
        rank[me].step[0].slot[row_] = rank[me].step[1].slot[row_];
        rank[me].step[0].blocks[row_] = rank[me].step[1].blocks[row_];
        rank[me].step[1].expected[row_] = 0;
        rank[me].step[1].slot[row_] = 0;
        rank[me].step[1].blocks[row_] = 0
    }
    rank[me].step[0].is_computing = rank[me].step[1].is_computing;
    rank[me].step[1].is_computing = 0;
    rank[me].parked_slots[0] = rank[me].parked_slots[1];
    rank[me].parked_blocks[0] = rank[me].parked_blocks[1];
    rank[me].parked_slots[1] = 0;
    rank[me].parked_blocks[1] = 0;
    for (r_ : 1 .. REQUESTS) {
        if
        :: IS_RUNNING(me, r_) -> request[r_].last_step = 0
        :: else
        fi
    }
}

/* ---- data-parallel lockstep ------------------------------------------------------------------------- */

/* The next message: a request for this rank, or the news of one for another. The first rank to get it
   decides, for the client, what the submission is. */
inline take_message(me) {
    rank[me].seen++;
    if
    :: rank[me].seen > num_submitted ->
        num_submitted++;
        if
        :: true
        :: num_submitted > 1 && RANKS > 1 -> request[num_submitted].home = 1
        fi;
        if
        :: true
        :: URGENT -> request[num_submitted].is_urgent = 1
        fi
    :: else
    fi;
    d_step {
        who_ = rank[me].seen;
        if
        :: request[who_].status == NEW && request[who_].home == me -> add(me, who_)
        :: else
        fi
    }
}

inline take_aborts(me) {
    for (order_ : 1 .. REQUESTS) {
        if
        :: !(chosen & BIT(order_))
        :: (chosen & BIT(order_)) && request[order_].status == FINISHED -> add(me, order_)
        :: else -> finish(me, order_)
        fi
    }
}

/* The last to vote tells all. Lockstep ends when nobody has work and all have seen the same submissions. */
inline cast_vote(me) {
    rank[me].has_voted = 1;
    rank[me].has_work = (rank[me].num_uncommitted > 0);
    for (r_ : 1 .. REQUESTS) {
        rank[me].has_work = rank[me].has_work || IS_LIVE(me, r_)
    }
    ok_ = 1;
    n_ = LEAVE;
    for (id_ : 0 .. RANKS - 1) {
        ok_ = ok_ && rank[id_].has_voted;
        n_ = (rank[id_].has_work || rank[id_].seen != rank[me].seen -> STAY : n_)
    }
    if
    :: ok_ ->
        for (id_ : 0 .. RANKS - 1) {
            rank[id_].outcome = n_;
            rank[id_].has_voted = 0;
            rank[id_].has_work = 0
        }
    :: else
    fi
}

/* ---- processes -------------------------------------------------------------------------------------- */

#define HAS_ROWS(me, r) (REQUEST_OF(rank[me].step[0].expected[0]) == r || REQUEST_OF(rank[me].step[1].expected[0]) == r \
    || REQUEST_OF(rank[me].step[0].expected[SLOTS - 1]) == r || REQUEST_OF(rank[me].step[1].expected[SLOTS - 1]) == r)

proctype engine(byte me) {
    byte i;
    byte num_left;
inbox:
    atomic {
        do
        :: rank[me].seen < REQUESTS -> take_message(me); rank[me].is_idle = 0
        :: !rank[me].is_idle || AGAIN -> break
        od;
        rank[me].is_idle = 0;
        for (i : 1 .. REQUESTS) {
            if
            :: IS_LIVE(me, i) -> chosen = chosen | BIT(i)
            :: AGAIN && request[i].status == FINISHED && !HAS_ROWS(me, i) -> chosen = chosen | BIT(i)
            :: true
            fi
        }
        i = 0;
        d_step {
            take_aborts(me);
            cast_vote(me);
            check_ledgers(me);
            chosen = 0
        }
    };
    atomic {
        rank[me].outcome != 0;
        if
        :: rank[me].outcome == LEAVE -> rank[me].outcome = 0; goto idle
        :: rank[me].outcome == STAY -> rank[me].outcome = 0
        fi;
        num_left = 1;
        if
        :: num_left = 0
        :: true
        fi;
        for (i : 0 .. REQUESTS) {
            if
            :: i == 0 || IS_RUNNING(me, i) -> chosen = chosen | BIT(i)
            :: true
            fi
        }
        i = 0;
        d_step {
            schedule(me);
            if
            :: num_rows_ > 0 || RANKS > 1 -> launch(me)
            :: else
            fi;
            num_left = num_left && num_rows_ > 0;
            check_ledgers(me);
            chosen = 0
        }
    };
complete:
    atomic {
        if
        :: rank[me].num_uncommitted <= num_left -> num_left = 0; goto inbox
        :: rank[me].num_uncommitted > num_left && !rank[me].step[0].is_computing
        fi;
        for (i : 1 .. REQUESTS) {
            if
            :: IS_RUNNING(me, i) && HAS_ROWS(me, i) -> chosen = chosen | BIT(i)
            :: true
            fi
        }
        i = 0;
        d_step {
            commit(me);
            check_ledgers(me);
            chosen = 0
        };
        goto complete
    };
idle:
    atomic {
        assert(rank[me].free_slots == ALL_SLOTS && rank[me].free_blocks == ALL_BLOCKS);
        rank[me].is_idle = 1
    };
end_idle:
    atomic {
        rank[me].seen < REQUESTS || AGAIN;
        goto inbox
    }
}

proctype runner(byte me) {
end_no_step:
    do
    :: d_step { rank[me].step[0].is_computing -> execute(me, 0) }
    :: d_step { !rank[me].step[0].is_computing && rank[me].step[1].is_computing -> execute(me, 1) }
    od
}

init {
    byte k;
    atomic {
        for (k : 0 .. RANKS - 1) {
            rank[k].free_slots = ALL_SLOTS;
            rank[k].free_blocks = ALL_BLOCKS;
            run engine(k);
            run runner(k)
        }
        k = 0
    }
}

#define SOMEBODY(r)     (request[r].status >= WAITING && request[r].status <= RUNNING)
#define ANYBODY         (SOMEBODY(1) || SOMEBODY(REQUESTS / 2 + 1) || SOMEBODY(REQUESTS))
#define HAS_SEEN_ALL    (rank[0].seen == REQUESTS && rank[RANKS - 1].seen == REQUESTS)
#define ALL_IDLE        (rank[0].is_idle && rank[RANKS - 1].is_idle)

ltl everybody_ends { [] <> (!ANYBODY && (HAS_SEEN_ALL -> ALL_IDLE)) }
ltl nobody_starves { [] (SOMEBODY(1) -> <> !SOMEBODY(1)) }
