// Stock amqplib against Ackflow: prints what it saw as JSON.
const amqp = require("amqplib");

async function main(url) {
  const seen = {};
  const connection = await amqp.connect(url);
  const channel = await connection.createConfirmChannel();
  await channel.assertExchange("js.x", "topic", { durable: true });
  await channel.assertQueue("js.q", { durable: true, maxPriority: 5, deadLetterExchange: "js.x", deadLetterRoutingKey: "dead" });
  await channel.assertQueue("js.dead", { durable: true });
  await channel.bindQueue("js.q", "js.x", "a.*");
  await channel.bindQueue("js.dead", "js.x", "dead");
  for (const n of [1, 2, 3]) {
    channel.publish("js.x", "a.b", Buffer.from(String(n)), { persistent: true, priority: n, headers: { n, nested: { deep: [true, 1.5] } } });
  }
  await channel.waitForConfirms();
  const returned = new Promise((resolve) => channel.once("return", (m) => resolve(m.fields.replyText)));
  channel.publish("js.x", "nowhere", Buffer.from("x"), { mandatory: true });
  seen.returned = await returned;
  await channel.prefetch(1);
  seen.order = [];
  seen.headers = [];
  await new Promise((resolve) => {
    channel.consume("js.q", (message) => {
      seen.order.push(message.content.toString() + (message.fields.redelivered ? " again" : ""));
      seen.headers.push(message.properties.headers);
      if (seen.order.length === 1) channel.nack(message);
      else if (seen.order.length === 4) channel.reject(message, false);
      else channel.ack(message);
      if (seen.order.length === 4) resolve();
    });
  });
  let dead = false;
  for (let i = 0; !dead && i < 200; i++) {
    dead = await channel.get("js.dead", { noAck: true });
    if (!dead) await new Promise((resolve) => setTimeout(resolve, 20));
  }
  seen.dead = [dead.content.toString(), dead.properties.headers["x-death"][0].reason];
  const other = await connection.createChannel();
  other.on("error", () => {});
  seen.error = await other.checkQueue("js.none").catch((error) => error.code);
  await connection.close();
  console.log(JSON.stringify(seen));
}

main(process.argv[2]).catch((error) => {
  console.error(error);
  process.exit(1);
});
