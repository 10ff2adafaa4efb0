PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE schedd_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT schedd_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO schedd_version VALUES('0001');
CREATE TABLE schedd_attempts (
	task_id BIGINT NOT NULL, 
	claim BIGINT NOT NULL, 
	number INTEGER NOT NULL, 
	worker BIGINT NOT NULL, 
	claimed_at BIGINT, 
	started_at BIGINT, 
	finished_at BIGINT NOT NULL, 
	outcome SMALLINT NOT NULL, 
	error TEXT, 
	error_class TEXT, 
	fingerprint TEXT, 
	status_code INTEGER, 
	envelope TEXT, 
	PRIMARY KEY (task_id, claim)
)
 WITHOUT ROWID

;
INSERT INTO schedd_attempts VALUES(1,1,1,1,1795699475577734,1795699475594619,1795699475594677,0,NULL,NULL,NULL,NULL,NULL);
INSERT INTO schedd_attempts VALUES(2,1,1,1,1795699475664427,1795699475666385,1795699475667846,3,'ValueError: never','ValueError','7212e562fc49',NULL,NULL);
INSERT INTO schedd_attempts VALUES(2,2,2,1,1795699475710066,1795699475711339,1795699475712178,3,'ValueError: never','ValueError','7212e562fc49',NULL,NULL);
INSERT INTO schedd_attempts VALUES(3,1,1,1,1795699475664427,1795699475667889,1795699475669386,2,'ValueError: not yet','ValueError','4df245d3cb89',NULL,NULL);
INSERT INTO schedd_attempts VALUES(4,1,1,1,1795699475670292,1795699475676561,1795699475690343,3,'AttributeError: ''Context'' object has no attribute ''sleep''','AttributeError','c954650da6b8',NULL,NULL);
CREATE TABLE schedd_audit (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	task_id BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	actor TEXT, 
	action TEXT NOT NULL, 
	detail TEXT
);
INSERT INTO schedd_audit VALUES(1,2,1795699475703280,NULL,'replay','{"attempt":1,"error":"ValueError: never"}');
CREATE TABLE schedd_checkpoints (
	task_id BIGINT NOT NULL, 
	name TEXT NOT NULL, 
	sort SMALLINT NOT NULL, 
	seq INTEGER NOT NULL, 
	claim BIGINT NOT NULL, 
	value TEXT, 
	failure TEXT, 
	started_at BIGINT, 
	at BIGINT NOT NULL, 
	note TEXT, 
	PRIMARY KEY (task_id, name)
);
INSERT INTO schedd_checkpoints VALUES(4,'first',0,1,1,'7',NULL,1795699475676681,1795699475677792,NULL);
CREATE TABLE schedd_edges (
	parent BIGINT NOT NULL, 
	child BIGINT NOT NULL, 
	on_end SMALLINT NOT NULL, 
	otherwise SMALLINT NOT NULL, 
	ok SMALLINT NOT NULL, 
	PRIMARY KEY (parent, child)
)
 WITHOUT ROWID

;
INSERT INTO schedd_edges VALUES(2,7,2,0,15);
INSERT INTO schedd_edges VALUES(5,6,0,0,1);
INSERT INTO schedd_edges VALUES(5,7,2,0,15);
CREATE TABLE schedd_events (
	name TEXT NOT NULL, 
	payload TEXT, 
	emitted_at BIGINT NOT NULL, 
	emitted_by BIGINT, 
	PRIMARY KEY (name)
);
CREATE TABLE schedd_kinds (
	name TEXT NOT NULL, 
	schema TEXT NOT NULL, 
	options TEXT NOT NULL, 
	schema_version INTEGER NOT NULL, 
	updated_at BIGINT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO schedd_kinds VALUES('bad','{"$ref":"#/$defs/bad","$defs":{"bad":{"title":"bad","type":"object","properties":{},"required":[],"additionalProperties":false}}}','{"runs":"bad","sort":"thread","queue":"default","pool":1,"retry":null,"timeout":null,"max_concurrency":null,"rate_limit":null,"dead_letter":true,"result_ttl":null,"stall_after":null,"on_stall":"report","concurrency_key":false,"concurrency_key_why":null}',1,1795699475551668);
INSERT INTO schedd_kinds VALUES('durable','{"$ref":"#/$defs/durable","$defs":{"durable":{"title":"durable","type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}}}','{"runs":"durable","sort":"thread","queue":"default","pool":1,"retry":null,"timeout":null,"max_concurrency":5,"rate_limit":null,"dead_letter":true,"result_ttl":null,"stall_after":null,"on_stall":"report","concurrency_key":false,"concurrency_key_why":null}',1,1795699475551668);
INSERT INTO schedd_kinds VALUES('flaky','{"$ref":"#/$defs/flaky","$defs":{"flaky":{"title":"flaky","type":"object","properties":{},"required":[],"additionalProperties":false}}}','{"runs":"flaky","sort":"thread","queue":"default","pool":1,"retry":"{\"min_wait\":3600.0,\"max_wait\":7200.0,\"max_attempts\":3,\"factor\":2.0,\"jitter\":0.1,\"strategy\":\"exponential\",\"retry_on\":[]}","timeout":null,"max_concurrency":null,"rate_limit":null,"dead_letter":true,"result_ttl":null,"stall_after":null,"on_stall":"report","concurrency_key":false,"concurrency_key_why":null}',1,1795699475551668);
INSERT INTO schedd_kinds VALUES('quick','{"$ref":"#/$defs/quick","$defs":{"quick":{"title":"quick","type":"object","properties":{"n":{"type":"integer","default":0}},"required":[],"additionalProperties":false}}}','{"runs":"quick","sort":"thread","queue":"default","pool":1,"retry":null,"timeout":null,"max_concurrency":null,"rate_limit":null,"dead_letter":true,"result_ttl":null,"stall_after":null,"on_stall":"report","concurrency_key":false,"concurrency_key_why":null}',1,1795699475551668);
INSERT INTO schedd_kinds VALUES('slow','{"$ref":"#/$defs/slow","$defs":{"slow":{"title":"slow","type":"object","properties":{"n":{"type":"integer","default":0}},"required":[],"additionalProperties":false}}}','{"runs":"slow","sort":"thread","queue":"default","pool":1,"retry":null,"timeout":null,"max_concurrency":null,"rate_limit":null,"dead_letter":true,"result_ttl":null,"stall_after":null,"on_stall":"report","concurrency_key":false,"concurrency_key_why":null}',1,1795699475551668);
CREATE TABLE schedd_outcomes (
	task_id BIGINT NOT NULL, 
	state SMALLINT NOT NULL, 
	removed_at BIGINT NOT NULL, 
	PRIMARY KEY (task_id)
);
CREATE TABLE schedd_schedules (
	name TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	payload TEXT NOT NULL, 
	options TEXT NOT NULL, 
	recurrence TEXT NOT NULL, 
	catchup TEXT NOT NULL, 
	overlap TEXT NOT NULL, 
	anchor BIGINT NOT NULL, 
	next_at BIGINT NOT NULL, 
	paused SMALLINT DEFAULT 0 NOT NULL, 
	last_slot BIGINT, 
	last_task BIGINT, 
	created_at BIGINT NOT NULL, 
	updated_at BIGINT NOT NULL, 
	seen_at BIGINT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO schedd_schedules VALUES('every','quick','{"n":100}','{"kind":"quick","payload":"","lane":"quick","queue":"default","pool":1,"run_at":0,"delay":0,"max_attempts":1,"retry":null,"timeout":null,"dead_letter":true,"payload_ref":null,"schema_version":1,"message_type":null,"correlation":null,"causation":null,"subject":null,"sequence":null,"headers":null,"key":null,"conflict":"keep","key_retention":null,"schedule":null,"slot":null,"missed":null,"missed_since":null,"result_ttl":null,"max_duration":null,"max_delay":null,"edges":[]}','{"kind":"interval","interval_us":3600000000,"mode":"fixed_rate"}','skip','allow',1795699475698285,1795703075698285,0,NULL,NULL,1795699475698285,1795699475698285,1795699475698285);
CREATE TABLE schedd_starts (
	kind TEXT NOT NULL, 
	until BIGINT NOT NULL, 
	starts INTEGER NOT NULL, 
	PRIMARY KEY (kind, until)
)
 WITHOUT ROWID

;
CREATE TABLE schedd_task_values (
	task_id BIGINT NOT NULL, 
	name TEXT NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY (task_id, name)
);
INSERT INTO schedd_task_values VALUES(2,'log:1',replace('Traceback (most recent call last):\n  File "/tmp/st/old/8de6081/scheduler/model/registry.py", line 340, in run\n    return function(ctx, *msgspec.structs.astuple(value))\n           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File "/tmp/st/make_old.py", line 19, in bad\n    def bad(ctx: Context) -> None: raise ValueError("never")\n                                   ^^^^^^^^^^^^^^^^^^^^^^^^^\nValueError: never\n','\n',char(10)));
INSERT INTO schedd_task_values VALUES(3,'log:1',replace('Traceback (most recent call last):\n  File "/tmp/st/old/8de6081/scheduler/model/registry.py", line 340, in run\n    return function(ctx, *msgspec.structs.astuple(value))\n           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File "/tmp/st/make_old.py", line 16, in flaky\n    def flaky(ctx: Context) -> None: raise ValueError("not yet")\n                                     ^^^^^^^^^^^^^^^^^^^^^^^^^^^\nValueError: not yet\n','\n',char(10)));
INSERT INTO schedd_task_values VALUES(4,'log:1',replace('Traceback (most recent call last):\n  File "/tmp/st/old/8de6081/scheduler/model/registry.py", line 340, in run\n    return function(ctx, *msgspec.structs.astuple(value))\n           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File "/tmp/st/make_old.py", line 24, in durable\n    ctx.sleep("nap", 3600)\n    ^^^^^^^^^\nAttributeError: ''Context'' object has no attribute ''sleep''\n','\n',char(10)));
INSERT INTO schedd_task_values VALUES(2,'log:2',replace('Traceback (most recent call last):\n  File "/tmp/st/old/8de6081/scheduler/model/registry.py", line 340, in run\n    return function(ctx, *msgspec.structs.astuple(value))\n           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File "/tmp/st/make_old.py", line 19, in bad\n    def bad(ctx: Context) -> None: raise ValueError("never")\n                                   ^^^^^^^^^^^^^^^^^^^^^^^^^\nValueError: never\n','\n',char(10)));
CREATE TABLE schedd_tasks (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	state SMALLINT NOT NULL, 
	queue TEXT NOT NULL, 
	lane TEXT NOT NULL, 
	pool SMALLINT NOT NULL, 
	run_at BIGINT NOT NULL, 
	kind TEXT NOT NULL, 
	unmet INTEGER DEFAULT 0 NOT NULL, 
	worker BIGINT, 
	claim BIGINT DEFAULT 0 NOT NULL, 
	attempt INTEGER DEFAULT 0 NOT NULL, 
	attempt_base INTEGER DEFAULT 0 NOT NULL, 
	max_attempts INTEGER, 
	retry TEXT, 
	timeout BIGINT, 
	dead_letter SMALLINT DEFAULT 1 NOT NULL, 
	created_at BIGINT NOT NULL, 
	claimed_at BIGINT, 
	started_at BIGINT, 
	finished_at BIGINT, 
	payload TEXT, 
	extras SMALLINT DEFAULT 0 NOT NULL, 
	payload_ref TEXT, 
	schema_version INTEGER DEFAULT 1 NOT NULL, 
	message_type TEXT, 
	correlation TEXT, 
	causation TEXT, 
	subject TEXT, 
	sequence BIGINT, 
	headers TEXT, 
	"key" TEXT, 
	held_key TEXT, 
	key_retention BIGINT, 
	key_until BIGINT, 
	schedule TEXT, 
	slot BIGINT, 
	missed INTEGER, 
	missed_since BIGINT, 
	cancel_requested BIGINT, 
	cancel_cascade SMALLINT DEFAULT 0 NOT NULL, 
	rerun SMALLINT DEFAULT 0 NOT NULL, 
	progress FLOAT, 
	progress_message TEXT, 
	last_heartbeat_at BIGINT, 
	suspect SMALLINT DEFAULT 0 NOT NULL, 
	deaths SMALLINT DEFAULT 0 NOT NULL, 
	result TEXT, 
	result_ttl BIGINT, 
	result_until BIGINT, 
	kept_until BIGINT, 
	error TEXT, 
	error_class TEXT, 
	fingerprint TEXT, 
	status_code INTEGER, 
	ended_by BIGINT, 
	original_id BIGINT, 
	replay_count INTEGER DEFAULT 0 NOT NULL, 
	spawned_by BIGINT, 
	max_duration BIGINT, 
	max_delay BIGINT, 
	expires_at BIGINT, 
	check_at BIGINT
);
INSERT INTO schedd_tasks VALUES(1,6,'default','quick',1,1795699475532818,'quick',0,NULL,1,1,0,1,NULL,NULL,1,1795699475532818,1795699475577734,1795699475594619,1795699475594677,'{"n":1}',0,NULL,1,NULL,NULL,NULL,NULL,NULL,NULL,'first','first',NULL,1795785875601045,NULL,NULL,NULL,NULL,NULL,0,0,NULL,NULL,NULL,0,0,'2',NULL,1795785875601045,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL);
INSERT INTO schedd_tasks VALUES(2,8,'default','bad',1,1795699475703280,'bad',0,NULL,2,2,1,1,NULL,NULL,1,1795699475636802,1795699475710066,1795699475711339,1795699475712178,'{}',0,NULL,1,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,NULL,NULL,NULL,0,0,NULL,NULL,NULL,NULL,'ValueError: never','ValueError','7212e562fc49',NULL,NULL,2,1,NULL,NULL,NULL,NULL,NULL);
INSERT INTO schedd_tasks VALUES(3,2,'default','flaky',1,1795703248174882,'flaky',0,NULL,1,1,0,3,'{"min_wait":3600.0,"max_wait":7200.0,"max_attempts":3,"factor":2.0,"jitter":0.1,"strategy":"exponential","retry_on":[]}',NULL,1,1795699475648671,1795699475664427,1795699475667889,1795699475669386,'{}',0,NULL,1,NULL,NULL,NULL,NULL,NULL,NULL,'f','f',NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,NULL,NULL,NULL,0,0,NULL,NULL,NULL,NULL,'ValueError: not yet','ValueError','4df245d3cb89',NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL);
INSERT INTO schedd_tasks VALUES(4,8,'default','durable',1,1795699475666131,'durable',0,NULL,1,1,0,1,NULL,NULL,1,1795699475666131,1795699475670292,1795699475676561,1795699475690343,'{"n":3}',0,NULL,1,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,NULL,NULL,1795699475677792,0,0,NULL,NULL,NULL,NULL,'AttributeError: ''Context'' object has no attribute ''sleep''','AttributeError','c954650da6b8',NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL);
INSERT INTO schedd_tasks VALUES(5,5,'default','slow',1,1795699475676329,'slow',0,1,1,1,0,1,NULL,NULL,1,1795699475676329,1795699475677792,1795699475686784,NULL,'{"n":5}',0,NULL,1,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,NULL,NULL,NULL,0,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL);
INSERT INTO schedd_tasks VALUES(6,0,'default','quick',1,1795699475687723,'quick',1,NULL,0,0,0,1,NULL,NULL,1,1795699475687723,NULL,NULL,NULL,'{"n":9}',0,NULL,1,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,NULL,NULL,NULL,0,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL);
INSERT INTO schedd_tasks VALUES(7,0,'default','quick',1,1795699475693797,'quick',1,NULL,0,0,0,1,NULL,NULL,1,1795699475693797,NULL,NULL,NULL,'{"n":8}',0,NULL,1,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,NULL,NULL,NULL,0,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL);
INSERT INTO schedd_tasks VALUES(8,1,'default','quick',1,1795703075695769,'quick',0,NULL,0,0,0,1,NULL,NULL,1,1795699475695769,NULL,NULL,NULL,'{"n":2}',0,NULL,1,NULL,NULL,NULL,NULL,NULL,NULL,'later','later',NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,NULL,NULL,NULL,0,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE schedd_waits (
	task_id BIGINT NOT NULL, 
	name TEXT NOT NULL, 
	item BIGINT NOT NULL, 
	event TEXT, 
	until BIGINT NOT NULL, 
	claim BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	met SMALLINT DEFAULT 0 NOT NULL, 
	PRIMARY KEY (task_id, item, name)
);
CREATE TABLE schedd_worker_kinds (
	worker BIGINT NOT NULL, 
	kind TEXT NOT NULL, 
	schema_version INTEGER NOT NULL, 
	PRIMARY KEY (worker, kind)
);
INSERT INTO schedd_worker_kinds VALUES(1,'bad',1);
INSERT INTO schedd_worker_kinds VALUES(1,'durable',1);
INSERT INTO schedd_worker_kinds VALUES(1,'flaky',1);
INSERT INTO schedd_worker_kinds VALUES(1,'quick',1);
INSERT INTO schedd_worker_kinds VALUES(1,'slow',1);
CREATE TABLE schedd_workers (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	incarnation TEXT NOT NULL, 
	host TEXT NOT NULL, 
	pid INTEGER NOT NULL, 
	version TEXT NOT NULL, 
	state SMALLINT NOT NULL, 
	queues TEXT NOT NULL, 
	pools TEXT NOT NULL, 
	started_at BIGINT NOT NULL, 
	heartbeat_at BIGINT NOT NULL, 
	lease_until BIGINT NOT NULL, 
	drain_requested BIGINT, 
	skew BIGINT DEFAULT 0 NOT NULL, 
	UNIQUE (incarnation)
);
INSERT INTO schedd_workers VALUES(1,'8778f60aad164a76','host',23489,'0.1.0',0,'["*"]','{"high":[2,20],"medium":[8,100],"low":[4,50],"processes":2}',1795699475551668,1795699475677792,1795699505677792,NULL,0);
DELETE FROM sqlite_sequence;
INSERT INTO sqlite_sequence VALUES('schedd_tasks',8);
INSERT INTO sqlite_sequence VALUES('schedd_workers',1);
INSERT INTO sqlite_sequence VALUES('schedd_audit',1);
CREATE INDEX ix_schedd_audit_task_id ON schedd_audit (task_id);
CREATE INDEX ix_schedd_edges_broken_by_success ON schedd_edges (parent) WHERE ok IN (0, 2, 4, 6, 8, 10, 12, 14);
CREATE INDEX ix_schedd_edges_child ON schedd_edges (child);
CREATE INDEX ix_schedd_events_emitted_at ON schedd_events (emitted_at);
CREATE INDEX ix_schedd_outcomes_removed_at ON schedd_outcomes (removed_at);
CREATE INDEX ix_schedd_schedules_next_at ON schedd_schedules (next_at);
CREATE INDEX ix_schedd_tasks_check ON schedd_tasks (check_at) WHERE check_at IS NOT NULL;
CREATE INDEX ix_schedd_tasks_correlation ON schedd_tasks (correlation) WHERE correlation IS NOT NULL;
CREATE INDEX ix_schedd_tasks_done ON schedd_tasks (state, finished_at) WHERE state >= 7;
CREATE INDEX ix_schedd_tasks_held ON schedd_tasks (worker, lane) WHERE state >= 4 AND state <= 5;
CREATE INDEX ix_schedd_tasks_key ON schedd_tasks ("key") WHERE key IS NOT NULL;
CREATE INDEX ix_schedd_tasks_ready ON schedd_tasks (queue, pool, lane, run_at, id, state) WHERE state >= 1 AND state <= 3;
CREATE INDEX ix_schedd_tasks_spawned_by ON schedd_tasks (spawned_by) WHERE spawned_by IS NOT NULL;
CREATE INDEX ix_schedd_tasks_subject ON schedd_tasks (subject) WHERE subject IS NOT NULL;
CREATE INDEX ix_schedd_tasks_succeeded ON schedd_tasks (kept_until, finished_at) WHERE state = 6;
CREATE INDEX ix_schedd_tasks_waiting ON schedd_tasks (id) WHERE state = 0;
CREATE UNIQUE INDEX ux_schedd_tasks_held_key ON schedd_tasks (kind, held_key) WHERE held_key IS NOT NULL;
CREATE UNIQUE INDEX ux_schedd_tasks_slot ON schedd_tasks (schedule, slot) WHERE schedule IS NOT NULL;
CREATE INDEX ix_schedd_waits_event ON schedd_waits (event) WHERE event IS NOT NULL;
CREATE INDEX ix_schedd_waits_item ON schedd_waits (item) WHERE item > 0;
CREATE INDEX ix_schedd_waits_met ON schedd_waits (met) WHERE item = 0 AND met > 0;
CREATE INDEX ix_schedd_waits_open ON schedd_waits (task_id, name) WHERE met = 0;
COMMIT;
