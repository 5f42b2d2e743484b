"""Serves states from Kafka. Kafka Streams keeps them in this process, in a Java virtual machine (JPype).

The topic of each entity is a table of Kafka Streams: its store has the last message of every key, as raw bytes. If a
store is lost, Kafka Streams restores it from the same topic, so nothing is written to Kafka except the application's
offsets. There is one exception: a view in which the changes of some services do not count has an application of its
own, and the store of this application is restored from a topic of its own. A message is decoded when its row is
requested.

`java`, `tables`, `listeners` and `service_filter` are the only modules that know Java. `progress` finds out how far the
stores are complete.
"""
